"""Arrays that are made of a model's parameters, and given to its steps behind them."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax

from hybridlm._screened_head import Screen
from hybridlm._steps import Step
from models.linear import Form, Product, product_forms


@dataclass(frozen=True)
class DerivedParams:
    """What lies behind the parameters.

    Attributes:
        words: the places of the parameters whose words are given, in this order.
        screened: numbers of lanes whose most likely tokens are drawn with a `Screen` of the head, which is given behind
            the words if there are any.
    """

    words: tuple[int, ...] = ()
    screened: frozenset[int] = frozenset()

    def __len__(self) -> int:
        """How many arrays."""
        return len(self.words) + (len(Screen._fields) if self.screened else 0)

    def formed(self, step: Step, forms: Mapping[Product, Form], screened: bool) -> Step:
        """The step with its products in these forms; it takes all parameters with what lies behind them.

        Args:
            step: takes the parameters, or where it is `screened` a pair of them and the screen of the head.
            forms: of products.
            screened: whether it draws with the screen.
        """

        @functools.wraps(step)
        def formed(params: tuple[jax.Array, ...], *rest: Any) -> Any:
            count = len(params) - len(self)
            own, words, screen = params[:count], params[count:][: len(self.words)], params[count + len(self.words) :]
            known = [(own[place], one) for place, one in zip(self.words, words, strict=True)]
            with product_forms(forms, known):
                return step((own, Screen(*screen)) if screened else own, *rest)

        return formed
