"""`blockyard campaign`: many proposals against a baseline that grows, with one error rate for all that is kept."""

from __future__ import annotations

import json as json_text
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Ge

from blockyard.campaign.ledger import ErrorRate, Pairs, Positive, Tries
from blockyard.commands._signature import command
from blockyard.commands._types import OUTPUTS, Flag, Outputs, Text, Value, run_overrides
from blockyard.errors import printable
from blockyard.terminal import console, table

if TYPE_CHECKING:
    from blockyard.campaign.account import Account
    from blockyard.campaign.referee import Campaign

NOT_KEPT = 3  # exit code
Name = Annotated[str, Value("NAME", help="the campaign")]
Overrides = Annotated[str, Value("key=value", values=run_overrides, everything="overrides")]
Workers = Annotated[int, Ge(1), Value(help="runs in parallel")]


@command(subcommand="new")
def new(
    name: Name,
    *base: Overrides,
    metric: Text,
    error: ErrorRate = 0.05,
    tries: Tries = 100,
    first: Pairs = 4,
    most: Pairs = 20,
    measure: Pairs = 8,
    fresh: bool = False,
    hours: Positive | None = None,
    slower: Positive | None = None,
    larger: Positive | None = None,
    outputs: Outputs = OUTPUTS,
) -> None:
    """`campaign new` starts a campaign: a base, a metric on validation, and one error rate for everything it keeps.

    Checks the base, and trains nothing. The folder is outputs/campaigns/NAME; its ledger.jsonl is appended to by every
    other command. The test split is sealed: no verdict reads it before `campaign close`.

    Options:
        base: overrides of the first baseline, as for `blockyard train`
        metric: on validation, such as val/loss; it chooses what is kept
        error: the expected share of false keeps among all keeps, at most
        tries: judgements that share the error rate; with more of them each one takes more evidence
        first: pairs of runs of a proposal at its first look
        most: pairs of runs of a proposal at its last look
        measure: fresh seeds on which each new baseline is measured
        fresh: seeds of its own for each proposal, in place of common ones for all that meet one baseline; the error
            rate then holds for proposals that are chosen by the results of others, at up to twice the runs
        hours: of all runs, after which no try starts
        slower: the most that a step may take, as a ratio to the base
        larger: the most parameters, as a ratio to the base

    Examples:
        blockyard campaign new small experiment=gpt_code_small trainer.max_steps=200 metric=val/loss tries=100
    """
    from blockyard.campaign.referee import Campaign

    campaign = Campaign.create(
        name,
        *base,
        metric=metric,
        error=error,
        tries=tries,
        first=first,
        most=most,
        measure=measure,
        fresh=fresh,
        hours=hours,
        slower=slower,
        larger=larger,
        outputs=outputs,
    )
    sys.stdout.write(f"{campaign.folder}\n")
    for line in _account(campaign).sentences():
        sys.stdout.write(f"{line}\n")


@command(subcommand="try")
def propose(
    name: Name,
    proposal: Annotated[str, Value("PROPOSAL", help="a name for these overrides")],
    *overrides: Overrides,
    workers: Workers | None = None,
    retry: Flag[bool] = False,
    json: Flag[bool] = False,
    outputs: Outputs = OUTPUTS,
) -> int:
    """`campaign try` trains a proposal beside the present baseline, in pairs of equal seeds, and judges it.

    It stops as soon as the evidence is enough, or hopeless. What is kept joins the baseline, which is then measured on
    fresh seeds. Two processes may try at once. A try that was stopped goes on with the same command.

    exit codes: 0 kept, 1 a run of the baseline failed, 2 invalid input (nothing was started), 3 not kept, 130 Ctrl-C,
    143 SIGTERM

    Options:
        overrides: of the model, its initialization, optimizer or schedule
        retry: start failed runs of the baseline again
        json: print the verdict as JSON, and the progress on standard error

    Examples:
        blockyard campaign try small rms norm=rms
    """
    from blockyard.campaign.arms import StoppedError
    from blockyard.campaign.referee import Campaign, CampaignFailed

    stream = sys.stderr if json else sys.stdout

    def say(text: str) -> None:
        stream.write(f"{text}\n")
        stream.flush()

    try:
        judged = Campaign(name, outputs=outputs, workers=workers, say=say).propose(proposal, *overrides, retry=retry)
    except CampaignFailed as error:
        sys.stderr.write(printable(f"blockyard: {error}\n"))
        return 1
    except StoppedError as stopped:
        sys.stderr.write(f"{stopped}\n")
        return stopped.code
    if json:
        _print_json(asdict(judged))
    return 0 if judged.verdict == "kept" else NOT_KEPT


@command(subcommand="show")
def show(name: Name, *, json: Flag[bool] = False, outputs: Outputs = OUTPUTS) -> None:
    """`campaign show` prints the tries with their evidence, what the kept ones are worth, and what is left.

    Options:
        json: print all of it as JSON

    Examples:
        blockyard campaign show small
    """
    from blockyard.campaign.referee import Campaign

    account = _account(Campaign(name, outputs=outputs))
    if json:
        _print_json(account.plain())
        return
    _print_account(account)


@command(subcommand="verify")
def verify(name: Name, *, outputs: Outputs = OUTPUTS) -> int:
    """`campaign verify` computes every verdict again, from the ledger and the run folders.

    exit codes: 0 all verdicts follow from the runs, 1 one does not, 2 the ledger is damaged

    Examples:
        blockyard campaign verify small
    """
    from blockyard.campaign.audit import audit
    from blockyard.campaign.referee import Campaign

    campaign = Campaign(name, outputs=outputs)
    problems = audit(campaign)
    for problem in problems:
        sys.stdout.write(printable(f"{problem}\n"))
    if problems:
        return 1
    count = len(campaign.standing().judged)
    sys.stdout.write(f"{count} verdicts follow from the ledger and the runs\n")
    return 0


@command(subcommand="close")
def close(
    name: Name,
    *,
    workers: Workers | None = None,
    retry: Flag[bool] = False,
    json: Flag[bool] = False,
    outputs: Outputs = OUTPUTS,
) -> int:
    """`campaign close` compares the base with the last baseline on the test split, and ends the campaign.

    The test metrics are those of the last measurement's runs, whose seeds chose nothing. The ledger counts this look at
    the test split, and each later one: the command again shows the same values.

    Options:
        retry: start failed runs of the baseline again
        json: print the account as JSON

    Examples:
        blockyard campaign close small
    """
    from blockyard.campaign.arms import StoppedError
    from blockyard.campaign.referee import Campaign, CampaignFailed

    stream = sys.stderr if json else sys.stdout
    campaign = Campaign(name, outputs=outputs, workers=workers, say=lambda text: stream.write(f"{text}\n"))
    try:
        campaign.close(retry=retry)
    except CampaignFailed as error:
        sys.stderr.write(printable(f"blockyard: {error}\n"))
        return 1
    except StoppedError as stopped:
        sys.stderr.write(f"{stopped}\n")
        return stopped.code
    account = _account(campaign)
    if json:
        _print_json(account.plain())
    else:
        _print_account(account)
    return 0


def _account(campaign: Campaign) -> Account:
    from blockyard.campaign.account import Account

    return Account.of(campaign.name, campaign.standing())


def _print_account(account: Account) -> None:
    if account.judged:
        rows = table(
            f"campaign {account.name}: {account.settings.metric}",
            *("try", "proposal", "verdict", "pairs", "gain", "evidence", "needed", "overrides", "reason"),
        )
        for row in account.table():
            rows.add_row(*row)
        console().print(rows)
    for line in account.sentences():
        sys.stdout.write(f"{line}\n")


def _print_json(plain: Any) -> None:
    sys.stdout.write(json_text.dumps(plain, indent=2) + "\n")
