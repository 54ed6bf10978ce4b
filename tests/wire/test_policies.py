from __future__ import annotations

from hfmds.domain.round_policy import RoundPolicy
from hfmds.wire.conversions.admin_calls import policy_from, policy_message


def test_a_policy_without_over_selection_has_the_one_that_the_contract_names() -> None:
    message = policy_message(RoundPolicy(over_selection=2.0))
    message.ClearField("over_selection")
    assert policy_from(message).over_selection == 1.3
