from hfmds.service.limits.rate import Rate


def test_a_burst_passes_and_then_one_at_a_time() -> None:
    rate = Rate(2, burst_seconds=5)
    assert [rate.takes("a", 100.0) for _ in range(11)] == [True] * 10 + [False]
    assert not rate.takes("a", 100.4)
    assert rate.takes("a", 100.5)
    assert not rate.takes("a", 100.5)


def test_refused_calls_do_not_count() -> None:
    rate = Rate(1, burst_seconds=1)
    assert rate.takes("a", 0.0)
    for tenth in range(1, 10):
        assert not rate.takes("a", tenth / 10)
    assert rate.takes("a", 1.0)


def test_callers_do_not_get_in_each_others_way() -> None:
    rate = Rate(1, burst_seconds=1)
    assert rate.takes("a", 0.0)
    assert rate.takes("b", 0.0)
    assert not rate.takes("a", 0.0)


def test_who_was_quiet_may_burst_again_and_is_forgotten() -> None:
    rate = Rate(10, burst_seconds=1)
    for second in range(100):
        for i in range(100):
            assert rate.takes(f"caller-{second}-{i}", 10.0 * second)
    assert len(rate._quiet_at) <= 1100
    assert [rate.takes("caller-0-0", 2000.0) for _ in range(11)] == [True] * 10 + [False]
