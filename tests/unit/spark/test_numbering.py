from collections.abc import Sequence

from headrace.spark.slot_rdd import Executor, SlotNumbers

A, B, C = (Executor(name, host, 1) for name, host in (("1", "a"), ("2", "b"), ("3", "c")))
TWO_CORES = Executor("4", "d", 2)


def placed(places: Sequence[Executor], first: int = 0) -> SlotNumbers:
    numbering = SlotNumbers(first)
    numbering.place(numbering.of(places))
    return numbering


def test_places_are_numbered_from_the_first():
    assert SlotNumbers(1000).of([A, B]) == {1000: A, 1001: B}


def test_a_place_keeps_its_number_when_others_go_and_come():
    assert placed([A, B]).of([C, B]) == {0: C, 1: B}


def test_the_slots_of_an_executor_with_two_cores_keep_both_numbers():
    numbering = placed([TWO_CORES, A, TWO_CORES])

    assert numbering.of([A, TWO_CORES, TWO_CORES]) == {0: TWO_CORES, 1: A, 2: TWO_CORES}


def test_what_was_promised_to_the_first_newcomer_is_not_given_to_the_next():
    numbering = placed([A])
    assert numbering.promise([C]) == {0: C}

    assert numbering.promise([B, C]) == {0: C, 1: B}
    assert numbering.of([B, C]) == {0: C, 1: B}


def test_a_promise_to_one_that_has_gone_is_free_again():
    numbering = placed([A])
    numbering.promise([A, B])

    assert numbering.of([A, C]) == {0: A, 1: C}


def test_who_stays_comes_before_who_was_promised():
    numbering = placed([A])
    numbering.promise([B])

    assert numbering.of([B, A]) == {0: A, 1: B}
