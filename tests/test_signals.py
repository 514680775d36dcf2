"""Signals that ask a run to stop."""

import os
import signal

import pytest

from metamask_jax.training import signals
from metamask_jax.training.signals import caught_signals


@pytest.fixture
def fatal(monkeypatch):
    """What would have killed the process."""
    deaths = []
    before = {number: signal.signal(number, lambda *_: deaths.append(_[0])) for number in signals._STOP}
    yield deaths
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_two_signals_are_collected_and_the_third_kills(fatal, number):
    with caught_signals() as received:
        send(number)
        send(number)
        assert (received, fatal) == ([number, number], [])
        send(number)
        assert fatal == [number]
    send(number)
    assert fatal == [number, number]  # as before


def test_after_the_grace_period_the_second_one_kills(fatal, monkeypatch):
    monkeypatch.setattr(signals, "GRACE", -1.0)
    with caught_signals():
        send(signal.SIGTERM)
        assert fatal == [signal.SIGTERM]


def test_what_is_ignored_stays_ignored(fatal):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    with caught_signals() as received:
        send(signal.SIGHUP)
        assert not received


def test_signals_are_passed_on_to_whoever_handles_another_one(fatal):
    with caught_signals(leave=frozenset({signal.SIGTERM})) as received:
        send(signal.SIGINT)
        assert (received, fatal) == ([signal.SIGINT], [signal.SIGTERM])
