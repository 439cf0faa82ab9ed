"""Which test plays which fault of the safety protocol, by its number; each of them exists.

`Story` names a whole run at an emulated cloud (tests/cloudruns), told in words.
"""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent

# Kubernetes has no adapter yet; whoever writes it puts its tests here.
WITHOUT_ADAPTER = range(67, 72)

PLAYED_BY: dict[int, tuple[str, ...]] = {
    1: (
        "Story the answer to create is lost, the box listed late",
        "test_faults.py::test_a_box_whose_answer_was_lost_is_found_by_its_label",
        "test_faults.py::test_a_request_that_was_lost_is_never_sent_again",
    ),
    2: ("test_ghost.py::test_it_is_asked_to_end_within_a_minute_of_being_listed",),
    3: (
        "Story create is refused, and made a box",
        "provisioners/vast/test_vast.py::test_a_refusal_that_made_a_box_tells_its_id",
    ),
    4: (
        "Story create is answered 502, and made a box",
        "Story create is answered by a page of HTML",
        "provisioners/vast/test_vast.py::test_an_answer_that_proves_nothing_is_unclear_and_sent_once",
    ),
    5: ("test_chaos.py::test_nothing_leaks_whatever_else_is_there",),
    6: (
        "ssh/test_controller.py::test_with_the_lid_closed_the_run_goes_on_and_its_log_is_whole_later",
    ),
    7: (
        "Story every list is empty",
        "test_faults.py::test_an_empty_list_alone_never_calls_a_box_gone",
    ),
    8: (
        "Story the total of the list is wrong",
        "provisioners/vast/test_vast.py::test_a_list_that_does_not_add_up_is_an_error",
        "provisioners/prime/test_faults_life.py::test_a_list_that_is_not_whole_is_an_error",
    ),
    9: (
        "Story the key is another account's",
        "test_faults.py::test_what_another_account_says_is_no_evidence",
    ),
    10: ("Story DELETE is answered 404 auth_error, twice",),
    11: (
        "Story DELETE answers success and does nothing, twice",
        "Story a pod stays in DELETING",
        "test_faults.py::test_a_destroy_that_lies_is_still_billing_until_it_is_proven",
    ),
    12: (
        "test_proof.py::test_a_living_box_that_flickers_for_less_than_the_gap_is_never_gone",
        "provisioners/prime/test_faults_life.py::test_a_row_that_flickers_is_no_death",
    ),
    13: (
        "Story it is hidden by DELETE, and reappears",
        "test_keeper.py::test_a_label_that_reappears_is_ended_again",
    ),
    14: (
        "Story DELETE is answered 502, three times",
        "Story the API is down",
        "test_keeper.py::test_a_provider_that_is_away_is_asked_until_it_answers",
    ),
    15: (
        "test_cli.py::test_any_command_brings_the_keeper_back_while_a_timer_is_armed",
        "test_crashes.py::test_the_timer_holds_when_driver_and_keeper_are_killed",
    ),
    16: ("cloudruns/test_alone.py::test_the_fuse_ends_it_with_the_key_of_the_box",),
    17: (
        "test_standing.py::test_a_key_that_only_a_shell_has_is_remarked",
        "test_keeper_unit.py::test_no_key_is_in_the_unit_and_the_one_that_is_missing_is_said",
        "test_keeper_unit.py::test_lingering_is_seen",
        "test_handed.py::test_a_keeper_that_ran_without_the_key_ends_the_box_when_the_shell_is_gone",
    ),
    18: ("Story the key is revoked",),
    19: ("Story the credit runs out",),
    20: (
        "test_keeper.py::test_a_step_of_the_wall_clock_neither_fires_nor_delays",
        "test_due.py::test_a_box_lives_until_its_end_and_no_longer",
        "test_trust_clock.py::test_nothing_is_bought_while_the_wall_clock_is_hours_off",
    ),
    21: (
        "fuse/test_clocks.py::test_a_step_of_the_wall_clock_neither_fires_nor_delays",
        "fuse/test_clocks.py::test_a_box_whose_wall_clock_is_wrong_is_measured_against_ours",
    ),
    22: (
        "Story the container restarts",
        "provisioners/vast/test_onstart.py::test_a_restarted_container_keeps_its_deadline",
    ),
    23: (
        "Story the machine reboots",
        "ssh/test_machine.py::test_a_box_that_is_restarted_in_training_keeps_what_was_saved",
    ),
    24: ("Story the container is made anew, its disk empty",),
    25: ("Story stopped for a higher bid",),
    26: (
        "provisioners/vast/test_faults.py::test_nothing_here_starts_a_box_so_no_start_is_ever_queued",
    ),
    27: (
        "provisioners/vast/test_guard.py::test_just_before_it_fires_it_is_too_late_to_extend",
        "test_extend.py::test_a_provider_that_is_about_to_end_the_box_is_not_overtaken",
    ),
    28: (
        "provisioners/vast/test_guard.py::test_training_is_not_launched_under_the_hour_of_the_setup",
    ),
    29: (
        "Story the answer to the schedule is lost",
        "Story no scheduled end is accepted",
        "provisioners/vast/test_timer.py::test_a_lost_answer_is_found_in_the_list_or_asked_again",
    ),
    30: (
        "ssh/test_visit.py::test_what_extend_could_not_tell_while_the_line_was_down_every_guard_is_told_later",
        "test_keeper.py::test_what_the_fuse_could_not_be_told_is_collected_before_it_fires",
    ),
    31: ("fuse/test_deadline.py::test_a_renewal_moves_the_deadline_and_an_old_one_does_not",),
    32: ("fuse/test_deadline.py::test_a_renewal_between_two_refusals_calls_it_off",),
    33: (
        "test_store.py::test_a_timer_fires_for_one_caller",
        "test_store.py::test_a_fired_timer_is_not_replaced_by_arming",
    ),
    34: (
        "test_hostile.py::test_a_stopped_driver_is_woken_to_collect",
        "ssh/test_link.py::test_a_timer_that_fires_while_the_line_is_down_ends_the_processes_on_the_box",
    ),
    35: (
        "test_store.py::test_an_ending_only_ever_brings_the_deadline_nearer",
        "test_kept.py::test_it_is_kept_no_longer_than_its_timer_would_let_it_live",
    ),
    36: (
        "test_rounds.py::test_a_thousand_that_are_due_together_take_one_request_and_two_lists",
        "provisioners/vast/test_many.py::test_one_request_ends_them_all",
    ),
    37: (
        "test_trouble.py::test_a_full_disk_buys_nothing",
        "test_trouble.py::test_a_run_on_a_disk_that_fills_up_can_be_killed",
        "test_kill.py::test_a_run_on_a_full_disk_without_its_reserve_is_killed",
    ),
    38: (
        "test_trouble.py::test_kill_works_while_another_program_holds_the_database",
        "test_trouble.py::test_nothing_is_bought_while_another_program_holds_the_database",
        "test_trouble.py::test_status_answers_while_another_program_holds_the_database",
    ),
    39: (
        "test_trouble.py::test_a_corrupt_journal_can_still_be_ended_and_bought_from_no_more",
        "test_trouble.py::test_the_timer_ends_a_box_whose_journal_is_corrupt",
        "test_cli.py::test_status_of_a_corrupt_journal_says_where_it_has_it_from",
    ),
    40: (
        "test_keeper.py::test_a_database_restored_to_the_intent_buys_nothing_and_ends_the_box",
        "test_trouble.py::test_an_older_copy_of_the_journal_ends_what_it_has_forgotten",
    ),
    41: (
        "test_half_extended.py::test_a_guard_that_holds_a_later_timer_than_a_restored_journal_is_followed",
        "test_came_back.py::test_one_that_a_restored_journal_never_asked_for_is_ended",
        "test_came_back.py::test_one_that_a_restored_journal_has_never_heard_of_is_shown",
        "test_chaos.py::test_nothing_leaks_whatever_else_is_there",
    ),
    42: (
        "test_trouble.py::test_a_journal_of_another_machine_ends_nothing_by_itself",
        "test_chaos.py::test_nothing_leaks_whatever_else_is_there",
    ),
    43: (
        "test_keeper.py::test_what_is_not_ours_is_shown_and_never_touched",
        "test_orphans.py::test_only_what_is_named_is_ended_and_is_proven_gone",
        "test_chaos.py::test_nothing_leaks_at_a_cloud",
    ),
    44: ("test_caps.py::test_of_two_that_start_at_once_the_day_pays_for_one",),
    45: (
        "Story destroyed in the console",
        "Story the label is changed in the console",
    ),
    46: (
        "Story the id is given to somebody's box",
        "test_reaper.py::test_an_id_that_was_given_again_is_left_alone",
    ),
    47: ("test_one_purchase.py::test_a_box_whose_answer_comes_after_the_kill_is_known_and_ended",),
    48: ("test_cli_follow.py::test_what_is_not_confirmed_is_not_rented",),
    49: (
        "Story the row costs twice the offer",
        "test_purchase.py::test_an_offer_that_is_dearer_than_its_plan_when_yes_is_said_is_not_bought",
        "provisioners/prime/test_faults.py::test_euros_are_not_taken_for_dollars",
        "provisioners/prime/test_faults.py::test_a_price_that_rose_after_the_search_buys_nothing",
    ),
    50: ("test_cli_follow.py::test_a_closed_terminal_detaches",),
    51: (
        "test_trouble.py::test_a_newer_journal_is_refused_for_buying_but_not_for_ending",
        "test_trouble.py::test_the_database_is_migrated_from_each_released_version_with_a_live_run_in_it",
    ),
    52: (
        "test_keeper.py::test_a_damaged_timer_row_is_enforced_by_the_black_box",
        "test_damaged.py::test_a_damaged_cell_keeps_no_box_from_its_end",
        "test_damaged.py::test_one_bad_row_keeps_no_run_from_being_killed",
    ),
    53: ("test_store.py::test_a_timer_fires_for_one_caller",),
    54: (
        "test_lost_secrets.py::test_a_training_that_was_not_launched_ends_and_says_what_is_missing",
    ),
    55: ("Story the box has fewer GPUs, and its DELETE is a lie",),
    56: (
        "Story the box never gets ready",
        "Story the row says a word nobody knows",
    ),
    57: ("test_orphans.py::test_everything_that_bills_is_shown_at_what_the_meter_takes",),
    58: (
        "Story billing goes on after DELETE",
        "test_settling.py::test_shown_money_is_never_below_the_meter_from_the_order_to_the_end_of_the_tail",
    ),
    59: (
        "Story the box cannot reach the API",
        "provisioners/vast/test_onstart.py::test_python_ends_a_box_that_has_no_curl",
    ),
    60: ("fuse/test_files.py::test_an_answer_that_is_not_understood_is_no_guard",),
    61: (
        "provisioners/ssh/test_ssh.py::test_all_that_the_run_started_is_ended_and_nothing_else",
        "provisioners/ssh/test_ssh.py::test_gpus_that_are_busy_are_not_offered",
    ),
    62: (
        "provisioners/ssh/test_ssh.py::test_two_controllers_that_claim_at_once_never_share_it",
        "ssh/test_bad_input.py::test_a_host_whose_controller_is_gone_for_good_is_given_free_by_name",
    ),
    63: ("ssh/test_bad_input.py::test_a_host_that_cannot_be_used_does_not_blind_the_others",),
    64: ("provisioners/ssh/test_ssh.py::test_the_self_destroy_ends_the_run_but_keeps_its_files",),
    65: (
        "provisioners/local/test_end.py::test_after_a_reboot_nobody_is_signalled",
        "provisioners/local/test_end.py::test_a_reused_pid_is_not_signalled",
    ),
    66: (
        "provisioners/local/test_end.py::test_contained_a_process_without_mark_parent_or_session_ends_too",
        "provisioners/local/test_end.py::test_an_ordinary_user_ends_what_hides",
    ),
    72: (
        "provisioners/prime/test_faults_life.py::test_a_teams_pod_that_no_list_shows_is_shown_by_id_and_ended",
    ),
    73: (
        "provisioners/prime/test_faults.py::test_redirects_are_followed_but_never_for_an_order",
        "provisioners/prime/test_faults_life.py::test_a_404_of_a_living_pod_is_no_death",
    ),
    74: ("test_notices.py::test_a_notifier_that_hangs_for_ever_delays_no_kill",),
    75: ("test_filesystem.py::test_these_are_of_another_machine",),
    76: (
        "Story create arrives twice, the second says gone",
        "provisioners/vast/test_vast.py::test_a_replayed_purchase_is_adopted_and_not_bought_again",
    ),
    77: (
        "Story somebody's older box bears the label",
        "test_reaper.py::test_of_what_a_lost_request_has_made_nothing_stays",
    ),
    78: (
        "test_one_purchase.py::test_a_box_whose_answer_comes_after_the_kill_is_known_and_ended",
        "test_store.py::test_an_id_is_recorded_even_by_a_driver_that_lost_its_run",
    ),
}


def test_every_fault_is_played_by_a_test() -> None:
    assert sorted({*PLAYED_BY, *WITHOUT_ADAPTER}) == list(range(1, 79))
    assert [number for number, tests in PLAYED_BY.items() if not tests] == []


def test_every_one_of_these_tests_exists() -> None:
    named = {test for tests in PLAYED_BY.values() for test in tests}
    stories = {name.removeprefix("Story ") for name in named if name.startswith("Story ")}
    assert stories - _stories() == set()
    assert {name for name in named if "::" in name} - _tests() == set()


def _tests() -> set[str]:
    found = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                found.add(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def _stories() -> set[str]:
    texts = [path.read_text() for path in (TESTS / "cloudruns").glob("*.py")]
    return {name for text in texts for name in re.findall(r'Story\("([^"]+)"', text)}
