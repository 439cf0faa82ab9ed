"""The faults that the safety protocol numbers, against the knobs of the emulated clouds.

A fault of a cloud is a knob, or several; what a cloud cannot do is somebody else's fault, and the
word says whose.  A knob that no number names is one that a provider's own API has taught.
"""

from tests.clouds.knobs import FAULTS

# What happens on this side, and what tests it: killed, stopped, asleep, out of disk.
CONTROLLER = "this machine or its processes"
BOX = "the box itself, or what runs on it"
ELSEWHERE = "a provider that is no cloud of these"

PROTOCOL: dict[int, tuple[str, ...] | str] = {
    1: ("answer_lost", "list_lag_s"),
    2: ("answer_lost", "list_lag_s"),
    3: ("create_refused_made",),
    4: ("server_error", "html"),
    5: CONTROLLER,
    6: CONTROLLER,
    7: ("list_empty",),
    8: ("list_page_fails", "total_wrong", "list_twins"),
    9: ("key_of_other_account",),
    10: ("auth_404", "server_error"),
    11: ("delete_lies", "deleting_s"),
    12: ("flicker", "list_lag_s"),
    13: ("reappear_after_s",),
    14: ("rate_limited", "server_error", "down"),
    15: CONTROLLER,
    16: CONTROLLER,
    17: CONTROLLER,
    18: ("key_revoked",),
    19: ("credit_zero",),
    20: ("date_skew_s", "stale_date"),
    21: BOX,
    22: ("container_restart",),
    23: ("host_reboot",),
    24: ("recycle",),
    25: ("outbid", "resume_after_s"),
    26: ("start_queued",),
    27: CONTROLLER,
    28: CONTROLLER,
    29: ("schedule_refused", "schedule_answer_lost"),
    30: ("ssh_refused",),
    31: BOX,
    32: BOX,
    33: CONTROLLER,
    34: BOX,
    35: CONTROLLER,
    36: ("rate_limits",),
    37: CONTROLLER,
    38: CONTROLLER,
    39: CONTROLLER,
    40: CONTROLLER,
    41: CONTROLLER,
    42: CONTROLLER,
    43: CONTROLLER,
    44: CONTROLLER,
    45: ("console_destroy", "relabel"),
    46: ("id_reuse",),
    47: ("slow",),
    48: CONTROLLER,
    49: ("price_up", "disk_price_up", "offers_up", "currency_eur"),
    50: CONTROLLER,
    51: CONTROLLER,
    52: CONTROLLER,
    53: CONTROLLER,
    54: CONTROLLER,
    55: ("wrong_gpu", "delete_lies"),
    56: ("stuck", "status_word", "start_fails", "installation_error", "null_fields"),
    57: ("outbid", "create_refused_made"),
    58: ("tail_s",),
    59: ("box_cut_off", "container_key_dead"),
    60: BOX,
    61: ELSEWHERE,
    62: ELSEWHERE,
    63: ELSEWHERE,
    64: ELSEWHERE,
    65: ELSEWHERE,
    66: ELSEWHERE,
    67: ELSEWHERE,
    68: ELSEWHERE,
    69: ELSEWHERE,
    70: ELSEWHERE,
    71: ELSEWHERE,
    72: ("team_pods_hidden",),
    73: ("redirects", "pod_404"),
    74: CONTROLLER,
    75: CONTROLLER,
    76: ("create_replayed",),
    77: ("twin_label",),
    78: ("slow",),
}

# From the providers' documentation and the reports of their users.
OF_THE_API = {
    *("auto_tmux", "ip_with_spaces", "ssh_shape", "fractional_numbers", "boot_s"),
    *("search_empty", "search_varies", "filters_ignored", "search_quota", "offer_gone"),
    *("offer_excludes_storage", "max_price_needed", "validation_shape", "instance_limit"),
    *("key_scopes", "autobilling", "traffic"),
    *("delete_404", "terminated_listed_s", "history_lag_s"),
}

# Those that the protocol asks for by name.
ASKED_FOR = {
    *("list_lag_s", "list_empty", "list_page_fails", "total_wrong", "flicker", "reappear_after_s"),
    *("key_of_other_account", "auth_404", "date_skew_s", "stale_date", "schedule_refused"),
    *("schedule_answer_lost", "container_restart", "recycle", "host_reboot", "outbid"),
    *("resume_after_s", "relabel", "id_reuse", "console_destroy", "credit_zero", "key_revoked"),
    *("tail_s", "price_up"),
}
KNOBS = {fault.name for fault in FAULTS}
NUMBERED = {knob for knobs in PROTOCOL.values() if not isinstance(knobs, str) for knob in knobs}


def test_every_fault_of_the_protocol_is_a_knob_or_somebody_elses() -> None:
    assert list(PROTOCOL) == list(range(1, 79))
    assert not NUMBERED - KNOBS
    assert not ASKED_FOR - NUMBERED


def test_every_knob_is_of_the_protocol_or_taught_by_an_api() -> None:
    assert KNOBS - NUMBERED == OF_THE_API
