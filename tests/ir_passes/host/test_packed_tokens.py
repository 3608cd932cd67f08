"""The host's check of packed tokens."""

from typing import Any

import numpy as np
import pytest

from ir_passes import ContractError, ContractFault
from ir_passes.host.packed_tokens import check_packed, segment_ids

CU = np.array([0, 3, 4, 4, 7], np.int32)
IDS = np.array([0, 0, 0, 1, 3, 3, 3, 4, 4], np.int32)
FALLING = IDS[[0, 3, 1, 4, 5, 6, 7, 8, 8]]


def test_right_layouts_pass() -> None:
    assert segment_ids(CU, tokens=9).tolist() == IDS.tolist()
    check_packed(tokens=9, lanes=4, cu_seqlens=CU, ids=IDS, slots=[np.array([5, 1, 0, 2], np.int32)])
    check_packed(tokens=9, lanes=4, ids=IDS)


@pytest.mark.parametrize(
    ("changes", "fault", "about"),
    [
        ({"cu_seqlens": CU + 1, "tokens": 10, "ids": None}, ContractFault.BEGIN, "cu_seqlens"),
        ({"cu_seqlens": CU[[0, 1, 3, 2, 1]], "ids": None}, ContractFault.FALLS, "cu_seqlens"),
        ({"tokens": 6, "ids": None}, ContractFault.END, "cu_seqlens"),
        ({"cu_seqlens": CU[:-1]}, ContractFault.SHAPE, "cu_seqlens"),
        ({"ids": IDS + (IDS == 1) * 4}, ContractFault.RANGE, "segment id 5 of token 3"),
        ({"ids": IDS[::-1]}, ContractFault.DISAGREE, "segment id 4 of token 0"),
        ({"ids": IDS[:-1]}, ContractFault.SHAPE, "segment ids"),
        ({"cu_seqlens": None, "ids": FALLING}, ContractFault.FALLS, "segment id 0 of token 2"),
        ({"slots": [np.array([5, 1, 3, 2])]}, ContractFault.NULL_ROW, "lane 2"),
        ({"all_lanes": True}, ContractFault.NO_TOKEN, "lane 2"),
    ],
)
def test_wrong_layouts_raise(changes: dict[str, Any], fault: ContractFault, about: str) -> None:
    right = {"tokens": 9, "lanes": 4, "cu_seqlens": CU, "ids": IDS}
    with pytest.raises(ContractError) as error:
        check_packed(**(right | changes))
    assert [(fault.id, fault.about) for fault in error.value.faults] == [(fault, about)]
