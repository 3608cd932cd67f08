"""The host's check of packed tokens."""

from typing import Any

import numpy as np
import pytest

from ir_passes.host.packed_tokens import LayoutError, check_packed, segment_ids

CU = np.array([0, 3, 4, 4, 7], np.int32)
IDS = np.array([0, 0, 0, 1, 3, 3, 3, 4, 4], np.int32)


def test_right_layouts_pass() -> None:
    assert segment_ids(CU, tokens=9).tolist() == IDS.tolist()
    check_packed(tokens=9, lanes=4, cu_seqlens=CU, ids=IDS, slots=[np.array([5, 1, 0, 2], np.int32)])
    check_packed(tokens=9, lanes=4, ids=IDS[::-1])


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"cu_seqlens": CU + 1}, "begins with 1"),
        ({"cu_seqlens": CU[[0, 1, 3, 2, 1]]}, "falls from 4 to 3 at lane 3"),
        ({"tokens": 6, "ids": None}, "ends with 7"),
        ({"cu_seqlens": CU[:-1]}, "expected int32.5."),
        ({"ids": IDS + 1}, "segment id 5 of token 7"),
        ({"ids": IDS[::-1]}, "token 0 disagrees"),
        ({"ids": IDS[:-1]}, "expected int32.9."),
        ({"slots": [np.array([5, 1, 3, 2])]}, "lane 2 has no token and stands on row 3"),
        ({"all_lanes": True}, "lane 2 has no token"),
    ],
)
def test_wrong_layouts_raise(changes: dict[str, Any], match: str) -> None:
    right = {"tokens": 9, "lanes": 4, "cu_seqlens": CU, "ids": IDS}
    with pytest.raises(LayoutError, match=match):
        check_packed(**(right | changes))
