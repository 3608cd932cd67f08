"""The host's side of a step: holders of rows and pages, and a ledger of labels. Begin with `slot_owner`."""
