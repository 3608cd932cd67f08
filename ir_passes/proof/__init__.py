"""The lane proof: no sequence of a step reaches another sequence's state or results (noninterference).

The proof is an abstract interpretation of the step's jaxpr, on abstract values instead of arrays. A `Value` describes
one array:

* The *owner* (`owners`) gives the lanes that the elements may depend on: no lane (`Common`), one lane (`OneLane`), one
  lane for each row (`LaneRows`), the rows of a pool (`PoolRows`) or several lanes (`Mixed`). The contract gives the
  owners of the inputs.
* A *fact* (`values`) is another property of the elements: "element i is i" (`Iota`), "element i is lane i's entry of a
  slot map" (`SlotEntry`).

A *rule* (`rules`) is the transfer function of one primitive. Adding two arrays with rows of lanes keeps the owner;
reversing the rows, or a primitive without a rule, gives `Mixed`. Reading a pool with a `SlotEntry` as the index gives
rows of lanes; any other index is a violation. In the end each output's owner is compared with its contract entry
(`output_claims`): a `Mixed` output is a violation, reported with the user's line (`violations`).

Begin with `lane_proof`, then a short rule (`rules/reductions`). `site` interprets the equations, `prover` is the state
of a walk, `registry` the table of rules; `dims` proves the order of a pool's dimensions. Imports `contract`, `kernels`
and `jaxpr`.
"""
