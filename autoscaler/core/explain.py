"""All texts about decisions: facts as sentences, and a decision with its readings, recommendations and verdicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from autoscaler.core.model import (
    Behaviour,
    Cause,
    Combine,
    Control,
    ControlKind,
    Decision,
    EngineStatus,
    Fact,
    JobState,
    Observation,
    Phase,
    RateKind,
    Reading,
    Reason,
    Recommendation,
    Rescale,
    Verdict,
)
from autoscaler.core.wording import agree, count_of, format_age, format_number, format_span

_SENTENCES: Mapping[str, str] = {
    # what guards found
    "in_flight": "{rescale} is in progress: waiting until {phase}{pending}",
    "job_unsettled": "the job is {job}",
    "stands_still": "{why}; the job stands still meanwhile",
    "none_up": "none of {desired} replicas is up{pending}: a step up waits until one is",
    "none_came_up": "none of {desired} replicas is up{pending}: the next step up waits until one is, or for {pause}; "
    "{passed} passed",
    "nothing_comes_up": "no replica has come up for {passed}{pending}: the next step up waits until one does or "
    "{rescale} is given up",
    "step_not_up": "nothing of {rescale} came up{pending}: the next step up waits until something does, or for "
    "{pause}; {passed} passed",
    "clearly_short": "{why}, but a size of {current} is clearly too small",
    "tolerance": "the change from {current} to {wanted} is within the tolerance of {share:.0%}",
    "was_enough": "a size of {stable} was enough within the last {window}",
    "was_needed": "a size of {stable} was needed within the last {window}",
    "watched": "watched for {watched} of {window}",
    "rates": "{behaviour} allows {allowed}",
    "direction_disabled": "this direction is disabled",
    "cooldown": "{passed} of {pause} since the last rescale",
    "usable_slots": "the job can use {usable} slots",
    "useful_size": "with {partitions} partitions a size of {possible} has no more capacity than a smaller one; "
    "{useful} is worth its cost{ceiling}",
    "controls": "{controls}{but}",
    "contention": "sizes requested here did not last, {times} times within {window}: is there another controller? "
    "Nothing is requested until {pause} after the last time",
    "excluded": "nothing may change: {reason}",
    "bounds": "{minimum} to {maximum} is allowed{but}",
    "size_unknown": "the target's size is unknown: {why}",
    "target_size": "desired {desired}, ready {ready}",
    # what happened
    "clock": "the clock went back by {seconds:.0f} s",
    "external_change": "the size was changed from outside: {before} to {desired}",
    "gives_way": "the change from {before} to {to} that was requested is replaced by one to {wanted}",
    "not_accepted": "the target did not accept the change from {before} to {to}: {error}",
    "replaced_outside": "the size that was requested, {to}, was changed to {desired} from outside",
    "phase_reached": "{rescale}: after {took:.0f} s {phase}",
    "deadline_missed": "{rescale} is no longer waited for: {limit:.0f} s were not enough until {phase}{pending}",
    "settled": "{rescale} has settled after {took:.0f} s",
    "replicas_not_up": "{count} of {desired} replicas are not up",
    "replicas_gone": "{count} of {desired} replicas are gone",
    "replicas_killed": "{count} of {desired} replicas are gone; the engine still counts their slots, as for workers "
    "that were killed or hang",
    "replicas_stopped": "{count} of {desired} replicas are gone; the engine has given up their slots, as for workers "
    "that were stopped",
    "replica_replaced": "the engine counts {slots} slots where {replicas} replicas have {theirs}, as when a worker was "
    "killed and is replaced already",
    "job_restarts": "the job restarts",
}

_PHASES = {
    Phase.REQUESTED: "the target has accepted it",
    Phase.READY: "the target has the new number of replicas ready",
    Phase.REGISTERED: "the engine has registered their slots",
    Phase.ABSORBED: "the job runs at the new parallelism",
    Phase.RUNNING: "the job runs",
    Phase.CAUGHT_UP: "the backlog is processed",
}

_RESCALES = {
    Cause.REQUEST: "the rescale",
    Cause.EXTERNAL: "the rescale from outside",
    Cause.LOSS: "the replacement",
}

_GUARDS = {
    Reason.FRESHNESS: "freshness",
    Reason.SETTLING: "settling",
    Reason.TOLERANCE: "tolerance",
    Reason.STABILIZATION: "the stabilization window",
    Reason.RATE_LIMIT: "the rate limit",
    Reason.COOLDOWN: "the cooldown",
    Reason.CAP: "the cap of what the job can use",
    Reason.USEFUL_SIZE: "the useful sizes",
    Reason.CONTENTION: "the contention with another controller",
    Reason.TARGET: "what the target itself allows",
    Reason.CONTROL: "a manual pause, hold or limit",
    Reason.BOUNDS: "the bounds",
}

_FITS = "because the policies ask for no other size"
_NONE_UP = "because the policies asked for no more"

_QUIET = {
    Reason.MISSING: "could not decide, an input is missing",
    Reason.LEARNING: "is still learning",
    Reason.ABSTAINED: "made no recommendation",
    Reason.FAILED: "failed",
}


def describe(fact: Fact | str) -> str:
    """A fact as a sentence. A string is already a sentence, from a plug-in."""
    if isinstance(fact, str):
        return fact
    values = {name: _worded(value) for name, value in fact.values.items()}
    rescale, remarks, controls = (fact.values.get(name) for name in ("rescale", "remarks", "controls"))
    if isinstance(controls, tuple):
        values["controls"] = "; ".join(map(describe_control, controls))
    if isinstance(remarks, tuple):
        values["pending"] = _pending(rescale if isinstance(rescale, Rescale) else None, remarks)
    if "ceiling" in values:
        values["ceiling"] = f" ({values['ceiling']})" if values["ceiling"] else ""
    if "but" in values:
        values["but"] = f", but {values['but']}" if values["but"] else ""
    return _SENTENCES[fact.kind].format_map(values)


def describe_control(control: Control, *, by: bool = True) -> str:
    """A control in words: what it does, who set it, its end and its reason. Without `by` neither who nor the reason."""
    match control.kind:
        case ControlKind.PAUSE:
            ways = " and ".join(way for way, paused in (("up", control.up), ("down", control.down)) if paused)
            text = f"scaling {ways} is paused"
        case ControlKind.HOLD:
            text = f"the size is held at {control.replicas}"
        case _:
            ends = (("at least", control.minimum), ("at most", control.maximum))
            text = f"the size is limited to {' and '.join(f'{how} {size}' for how, size in ends if size is not None)}"
    if by:
        text += f" by {control.by}"
    if control.until is not None:
        text += f" until {_time(control.until)}"
    elif control.at is not None:
        text += " until it is resumed"
    return f"{text}: {control.reason}" if by and control.reason else text


def _worded(value: object) -> object:
    """A value as text for a sentence."""
    match value:
        case Fact():
            return describe(value)
        case Rescale():
            return describe_rescale(value)
        case Phase():
            return _PHASES[value]
        case timedelta():
            return f"{value.total_seconds():g} s"
        case Behaviour():
            rates = [
                f"{rate.value:g} {'%' if rate.kind is RateKind.PERCENT else 'replicas'} in {_worded(rate.period)}"
                for rate in value.rates
            ]
            return f"{value.select} of {', '.join(rates)}"
    return value


def describe_rescale(rescale: Rescale) -> str:
    """A rescale as the subject of a sentence."""
    if rescale.cause is Cause.LOSS and rescale.before == rescale.to:
        return f"the job's recovery on {rescale.to}"
    return f"{_RESCALES[rescale.cause]} from {rescale.before} to {rescale.to}"


def _pending(rescale: Rescale | None, remarks: tuple[object, ...]) -> str:
    """The end of a sentence: what the target reports about replicas that do not start or stop."""
    if rescale is not None and rescale.phase is not Phase.REQUESTED:
        return ""
    shown = () if rescale is None or rescale.confirmed else (f"the target still shows {rescale.before}",)
    reported = "; ".join(map(str, (*shown, *remarks)))
    return f" ({reported})" if reported else ""


class DeferredVerdict(Verdict):
    """A verdict with its fact. The sentence is made when it is read, which for most verdicts never happens."""

    __slots__ = ("fact",)

    fact: Fact | str

    def __init__(self, guard: Reason, before: int, after: int, reason: Reason, fact: Fact | str) -> None:
        # Written out, as most steps create one or two verdicts and a loop takes twice as long.
        set_field = object.__setattr__
        set_field(self, "guard", guard)
        set_field(self, "before", before)
        set_field(self, "after", after)
        set_field(self, "reason", reason)
        set_field(self, "fact", fact)

    @property
    def detail(self) -> str:
        """The fact as a sentence."""
        return describe(self.fact)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same verdict, even if the other one already has its sentence."""
        if not isinstance(other, Verdict):
            return NotImplemented
        return self.__reduce__()[1] == (other.guard, other.before, other.after, other.reason, other.detail)

    __hash__ = Verdict.__hash__

    def __repr__(self) -> str:
        """Show it as a `Verdict` with its sentence: digests of decisions are computed from this."""
        return repr(Verdict(*self.__reduce__()[1]))

    def __reduce__(self) -> tuple[type[Verdict], tuple[Reason, int, int, Reason, str]]:
        """Pickle it as a `Verdict` with its sentence."""
        return Verdict, (self.guard, self.before, self.after, self.reason, self.detail)


def describe_combination(how: Combine | None, error: str | None) -> str:
    """How the recommendations are combined; empty if the largest size counts, as records of decisions have it."""
    if how is None:
        return ""
    return str(how) if error is None else f"{how} ({error}; the greatest counts)"


_FAILING = (Reason.FAILED, Reason.MISSING)


def hold_reason(
    untrusted: Mapping[str, str],
    recommendations: Sequence[Recommendation],
    engine: EngineStatus | None,
    notes: Sequence[tuple[Reason, Fact]],
    combine_error: str | None,
) -> str | None:
    """Why the size must not be lowered on this input; None: it may."""
    failing = [asked for asked in recommendations if asked.reason in _FAILING]
    unknown = engine is not None and engine.job is JobState.UNKNOWN
    if not (untrusted or failing or unknown or combine_error or notes):
        return None
    reasons = [f"{name}: {why}" for name, why in untrusted.items()]
    reasons += [f"policy {asked.policy}: {asked.detail or asked.reason}" for asked in failing]
    if unknown:
        reasons.append("engine: the job's state is unknown")
    if combine_error is not None:
        reasons.append(combine_error)
    reasons += [describe(fact) for reason, fact in notes if reason is Reason.CLOCK]
    return "; ".join(reasons) or None


def explain(observation: Observation, decision: Decision, *, dry_run: bool = False, failed: str | None = None) -> str:
    """Explain a decision: one paragraph for the outcome, then what led to it.

    Args:
        observation: the observation that the decision is based on.
        decision: the decision.
        dry_run: whether it is a dry run, in which the target is not called.
        failed: why the call of the target failed; None: it did not, or that is unknown.
    """
    parts = [outcome(observation, decision, dry_run=dry_run, failed=failed)]
    parts.append(_list("What was read:", _read(observation)))
    parts.append(_list("What the policies asked for:", _asked(decision)))
    parts.append(_list("What the guards did:", _guarded(decision)))
    if decision.notes:
        parts.append(_list("What happened meanwhile:", (_sentence(text) for _, text in decision.notes)))
    return "\n\n".join(parts)


def readings(observation: Observation) -> list[tuple[str, str]]:
    """What was read: pairs of a name (`target`, `engine` or a metric) and the reading in words."""
    lines = []
    if observation.desired is not None:
        lines.append(("target", _target(observation.desired, observation.ready)))
    if observation.engine is not None:
        lines.append(("engine", _engine(observation.engine, observation.at)))
    for name, reading in observation.metrics.items():
        lines.append((name, f"{_value(reading)}, {_age(observation.at, reading.at)}"))
    return lines


def outcome(observation: Observation, decision: Decision, *, dry_run: bool = False, failed: str | None = None) -> str:
    """The outcome of a decision in one sentence; the arguments are those of `explain`."""
    who = f"{_time(decision.at)}: cluster {decision.cluster}"
    why = _why(decision)
    if decision.rescale:
        way = "up" if decision.desired > decision.current else "down"
        change = f"{way} from {decision.current} to {decision.desired}"
        # Only if this very change was refused is it made again.
        same = f" did not accept the change from {decision.current} to {decision.desired}: "
        refused = [text for reason, text in decision.notes if reason is Reason.UNCONFIRMED and same in text]
        if dry_run:
            return f"{who} would be scaled {change}, {why}. This is a dry run: the target was not called."
        if failed:
            return _dot(f"{who} was to be scaled {change}, {why}, but the change has not been made: {failed}")
        if refused:
            return _dot(f"{who} is to be scaled {change} again, {why}: {refused[-1]}")
        return f"{who} is scaled {change}, {why}."
    if observation.desired is None:
        why = f"because the size of its target is unknown; {decision.current} is assumed"
        return f"{who} is not scaled, {why}."
    if observation.ready == 0 and decision.current:
        # While no replica is up, the size cannot be said to fit the load.
        why = f"none of which is up, {_NONE_UP if why == _FITS else why}"
    return f"{who} stays at {decision.current}, {why}."


def summarize_decision(decision: Decision) -> str:
    """The reason for a decision in one line: the policy whose size counted, and how the guards changed that size."""
    asked = [one for one in decision.recommendations if one.replicas is not None]
    # The policy whose size was proposed. If an expression combined the sizes into another one: the first policy that
    # asked for a change.
    counted = [one for one in asked if one.replicas == decision.proposed] or [
        one for one in asked if one.replicas != decision.current
    ]
    parts = [f"{one.policy}: {one.detail or one.reason.value}" for one in counted[:1]]
    for verdict in decision.verdicts:
        if verdict.before != verdict.after:
            detail = f": {verdict.detail}" * bool(verdict.detail)
            parts.append(f"{verdict.guard.value} changed {verdict.before} to {verdict.after}{detail}")
    said = (f"{one.policy}: {one.detail}" for one in decision.recommendations if one.detail)
    return "; ".join(parts) or next(said, decision.reason.value)


def _why(decision: Decision) -> str:
    last = _last_word(decision)
    if decision.rescale:
        return _why_rescaled(decision, last)
    if decision.proposed != decision.current and last is not None:
        way = "more" if decision.proposed > decision.current else "fewer"
        return (
            f"although the policies asked for {way} ({decision.proposed}), "
            f"because of {_guard(last)}{_detail(last.detail)}"
        )
    if decision.reason is Reason.BOUNDS:
        return f"because of {_GUARDS[Reason.BOUNDS]}{_detail(decision.verdicts[-1].detail)}"
    reasons = {recommendation.reason for recommendation in decision.recommendations}
    if Reason.STEADY in reasons:
        return _FITS
    if Reason.FAILED in reasons:
        return "because a policy failed and no other asked for anything"
    if Reason.MISSING in reasons:
        return "because what the policies need could not be read"
    if Reason.LEARNING in reasons:
        return "because the policies have not seen enough yet"
    if decision.recommendations and any(r.replicas is not None for r in decision.recommendations):
        return "because the policies asked for the current size"
    return "because no policy asked for anything"


def _why_rescaled(decision: Decision, last: Verdict | None) -> str:
    if last is None or decision.desired == decision.proposed:
        return "as the policies asked"
    why = f"because of {_guard(last)}{_detail(last.detail)}"
    if all(recommendation.replicas is None for recommendation in decision.recommendations):
        return why
    return f"not to {decision.proposed} as the policies asked, {why}"


def _last_word(decision: Decision) -> Verdict | None:
    changing = [verdict for verdict in decision.verdicts if verdict.before != verdict.after]
    return changing[-1] if changing else None


def _guard(verdict: Verdict) -> str:
    name = _GUARDS.get(verdict.guard, verdict.guard.value)
    if verdict.reason is Reason.MISSING:
        return f"{name} (nothing is lowered on input that cannot be trusted)"
    if verdict.reason is Reason.LEARNING:
        return f"{name}, which has not been seen in full yet"
    return name


def _detail(text: str) -> str:
    return f": {text}" if text else ""


def _read(observation: Observation) -> Iterator[str]:
    if observation.desired is None:
        yield f"The target could not be asked: {observation.missing.get('target', 'no answer')}."
    else:
        yield _target(observation.desired, observation.ready)
    for remark in observation.remarks:
        yield _dot(f"The target reports: {remark}")
    if observation.engine is not None:
        yield _engine(observation.engine, observation.at)
    elif "engine" in observation.missing:
        yield f"The engine could not be asked: {observation.missing['engine']}."
    for name, reading in observation.metrics.items():
        yield f"{name} was {_value(reading)}, {_age(observation.at, reading.at)}."
    for name, why in observation.missing.items():
        if name in observation.metrics:
            yield f"{name} may raise the size, never lower it: {why}."
        elif name not in ("target", "engine"):
            yield f"{name} could not be read: {why}."
    if not observation.metrics and not observation.missing:
        yield "No metric is configured."


def _target(desired: int, ready: int | None) -> str:
    size = count_of(desired, "replica")
    if ready is None:
        return f"The target was set to {size}; it does not report how many are up."
    if ready == desired:
        return f"The target has {size}, all of them up." if desired else "The target has no replica."
    return f"The target was set to {size}; {ready} {agree(ready, 'is', 'are')} up."


def _engine(engine: EngineStatus, at: datetime) -> str:
    job = {JobState.UNKNOWN: "in an unknown state", JobState.FAILED: "failed"}.get(engine.job, engine.job.value)
    text = f"The job is {job}"
    if engine.running_since is not None and engine.job is JobState.RUNNING:
        text += f" for {format_span((at - engine.running_since).total_seconds())}"
    facts = []
    if engine.slots is not None:
        facts.append(f"{engine.slots} slots registered")
    if engine.parallelism is not None:
        facts.append(f"{engine.parallelism} in use")
    if engine.max_parallelism is not None:
        facts.append(f"at most {engine.max_parallelism} usable")
    if engine.partitions is not None:
        facts.append(f"{engine.partitions} partitions")
    if engine.restarts:
        facts.append(f"{count_of(engine.restarts, 'restart')} so far")
    if engine.last_checkpoint is not None:
        facts.append(f"last checkpoint or batch {_age(at, engine.last_checkpoint)}")
    return f"{text}: {', '.join(facts)}." if facts else f"{text}."


def _asked(decision: Decision) -> Iterator[str]:
    for recommendation in decision.recommendations:
        yield _recommendation(recommendation)
    if decision.combined:
        yield f"Combined by {decision.combined}, that is {decision.proposed}."
    elif len([asked for asked in decision.recommendations if asked.replicas is not None]) > 1:
        yield f"The greatest of these counts: {decision.proposed}."
    if not decision.recommendations:
        yield "No policy is configured."


def _recommendation(recommendation: Recommendation) -> str:
    name = recommendation.policy or "a policy"
    if recommendation.replicas is None:
        outcome = _QUIET.get(recommendation.reason, recommendation.reason.value)
    else:
        outcome = f"asked for {recommendation.replicas}"
    if recommendation.detail:
        return _dot(f"{name} {outcome}: {recommendation.detail}")
    if recommendation.inputs:
        inputs = ", ".join(f"{key} {format_number(value)}" for key, value in recommendation.inputs.items())
        return f"{name} {outcome} ({recommendation.reason.value}; {inputs})."
    return f"{name} {outcome} ({recommendation.reason.value})."


def _guarded(decision: Decision) -> Iterator[str]:
    passed = []
    for verdict in decision.verdicts:
        name = _GUARDS.get(verdict.guard, verdict.guard.value)
        if verdict.before != verdict.after:
            yield _sentence(f"{name} changed {verdict.before} to {verdict.after}{_detail(verdict.detail)}")
        elif verdict.detail:
            yield _sentence(f"{name} kept {verdict.after}: {verdict.detail}")
        else:
            passed.append(name)
    if passed:
        yield f"Nothing was changed by {_and(passed)}."
    if not decision.verdicts:
        yield "No guard was applied."


def _list(title: str, lines: Iterator[str]) -> str:
    return "\n".join([title, *(f"  - {line}" for line in lines)])


def _and(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _sentence(text: str) -> str:
    return _dot(text[:1].upper() + text[1:])


def _dot(text: str) -> str:
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _value(reading: Reading) -> str:
    if isinstance(reading.value, tuple) and reading.mean is not None:
        workers = count_of(len(reading.value), "worker")
        text = f"{format_number(reading.mean)} (mean; {format_number(max(reading.value))} at the hottest of {workers})"
    elif isinstance(reading.value, tuple):
        text = f"{', '.join(map(format_number, reading.value))} (one per replica)"
    else:
        text = format_number(reading.value)
    return text if reading.partitions is None else f"{text} ({reading.partitions} partitions)"


def _age(at: datetime, then: datetime) -> str:
    return format_age((at - then).total_seconds())


def _time(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} {at.tzname() or ''}".rstrip()
