"""Every fault of both clouds: each was reported by somebody, or the protocol (9) asks for it."""

from tests.clouds.faults import Fault

VAST = ("vast",)
PRIME = ("prime",)
BOTH = ("vast", "prime")

# Values that many knobs have.
ENDPOINT = (("endpoint", None), ("times", None))
INSTANCE = (("instance", None), ("after_s", 0))

WIRE = (
    Fault(
        "answer_lost",
        BOTH,
        "The connection is cut instead of an answer, before or after the effect of the request.",
        (("endpoint", "create"), ("times", 1), ("when", "after")),
    ),
    Fault(
        "server_error",
        BOTH,
        "A 5xx (or any status) instead of the answer; body is text, html or json.",
        (*ENDPOINT, ("status", 502), ("when", "before"), ("body", "text")),
    ),
    Fault(
        "html",
        BOTH,
        "A page of HTML with status 200, as from a proxy's login.",
        (*ENDPOINT, ("when", "before")),
    ),
    Fault(
        "rate_limited",
        BOTH,
        "429; shape is text, threshold, detail or json, with or without Retry-After.",
        (*ENDPOINT, ("shape", None), ("retry_after_s", None)),
    ),
    Fault(
        "slow",
        BOTH,
        "The answer comes this many real seconds late, the effect before or after them.",
        (*ENDPOINT, ("seconds", 5), ("when", "after")),
    ),
    Fault(
        "down",
        BOTH,
        "The whole API: drop, hang, or 503; the provider's own scheduler too, if said.",
        (("how", "drop"), ("scheduler_too", False)),
    ),
    Fault(
        "date_skew_s",
        BOTH,
        "The Date of every answer is off by this many seconds.",
        (("seconds", 3600),),
    ),
    Fault(
        "stale_date",
        BOTH,
        "Answers bear a Date of this age and an Age header, as from a cache.",
        (("age_s", 600),),
    ),
)

ACCOUNT = (
    Fault(
        "key_of_other_account",
        BOTH,
        "The same key is now another account's: it sees none of the instances.",
    ),
    Fault("key_revoked", BOTH, "The account's key was deleted: 401 on everything."),
    Fault(
        "key_scopes",
        BOTH,
        "The account's key has these scopes only, separated by commas.",
        (("scopes", "misc"),),
    ),
    Fault("auth_404", VAST, "Every answer is 404 auth_error, as for a wrong key.", ENDPOINT),
    Fault(
        "credit_zero",
        BOTH,
        "The credit is gone: no purchase; Vast stops every instance, Prime deletes every pod.",
    ),
    Fault(
        "autobilling",
        VAST,
        "The account has a card and tops its credit up below this many dollars.",
        (("below_usd", 10),),
    ),
    Fault("rate_limits", VAST, "The documented minimum intervals are enforced.", (("factor", 1),)),
    Fault(
        "instance_limit",
        PRIME,
        "The account may hold this many pods.",
        (("limit", 4),),
    ),
)

SEARCH = (
    Fault("search_empty", BOTH, "A search answers 200 and no offers.", (("times", 1),)),
    Fault("search_varies", VAST, "Identical searches return different halves of the market."),
    Fault("filters_ignored", VAST, "Numeric filters of a search are not applied."),
    Fault(
        "search_quota",
        VAST,
        "The daily search quota is used up: 429 search_quota_exceeded until midnight UTC.",
    ),
    Fault("offer_excludes_storage", VAST, "The dph_total of an offer leaves the storage out."),
    Fault("currency_eur", PRIME, "Offers are priced in EUR."),
    Fault("offers_up", BOTH, "Offers cost this many times as much.", (("factor", 1.5),)),
)

CREATE = (
    Fault(
        "offer_gone",
        BOTH,
        "The offer was taken between the search and the create; status as reported for it.",
        (("status", None), ("times", None)),
    ),
    Fault(
        "create_refused_made",
        VAST,
        "The create is refused, but a parked instance is made; its id is in the refusal.",
        (("times", 1),),
    ),
    Fault(
        "create_replayed",
        VAST,
        "The PUT arrives twice: the first makes the instance, the second is answered: no_such_ask.",
        (("times", 1),),
    ),
    Fault(
        "validation_shape",
        PRIME,
        "A 422 has this shape: detail, or errors.",
        (("shape", "errors"),),
    ),
    Fault(
        "redirects",
        PRIME,
        "A path without its final slash is a 307 with an empty body, as it is for availability.",
        ENDPOINT,
    ),
    Fault("max_price_needed", PRIME, "Every offer wants a maxPrice, not only variable ones."),
)

LISTS = (
    Fault(
        "list_lag_s", BOTH, "A new instance is listed this many seconds late.", (("seconds", 45),)
    ),
    Fault("list_empty", BOTH, "A list answers 200 and no instances.", (("times", None),)),
    Fault(
        "list_page_fails",
        BOTH,
        "This page of a list fails.",
        (("page", 2), ("status", 500), ("times", None)),
    ),
    Fault("total_wrong", BOTH, "The total of a list is off by this much.", (("by", 1),)),
    Fault("list_twins", BOTH, "A list repeats its first row at its end."),
    Fault(
        "flicker",
        BOTH,
        "Every second list lacks the instance, the next one first.",
        (("instance", None),),
    ),
    Fault(
        "reappear_after_s",
        BOTH,
        "DELETE only hides the instance: it bills on, and is listed again after this time.",
        (("seconds", 600), ("times", 1), ("instance", None)),
    ),
    Fault("team_pods_hidden", PRIME, "A team's pods are missing from the list."),
    Fault("pod_404", PRIME, "GET of a living pod answers 404.", (("times", None),)),
    Fault(
        "null_fields",
        BOTH,
        "These fields of a row are null, separated by commas.",
        (("fields", "start_date"), ("instance", None)),
    ),
    Fault("fractional_numbers", PRIME, "installationProgress has a fraction."),
    Fault(
        "ssh_shape",
        PRIME,
        "sshConnection is: list, list_null, null, placeholder, no_port, with_ssh, nodes.",
        (("shape", "list"),),
    ),
)

LIFE = (
    Fault(
        "boot_s", BOTH, "An instance takes this long from create to running.", (("seconds", 600),)
    ),
    Fault("stuck", BOTH, "An instance never gets beyond this status.", (("status", None),)),
    Fault(
        "start_fails",
        BOTH,
        "The container does not start: created, stopped and an OCI error; ERROR at Prime.",
    ),
    Fault("installation_error", PRIME, "ACTIVE, but the image's installation fails."),
    Fault(
        "wrong_gpu",
        BOTH,
        "The machine has other GPUs than the offer: in the box, in the row, or in both.",
        (("gpu", None), ("count", None), ("where", "box")),
    ),
    Fault(
        "ssh_refused",
        BOTH,
        "Running, but SSH refuses: direct, proxy, or both.",
        (("path", "both"),),
    ),
    Fault("auto_tmux", VAST, "A login runs tmux and not its command, unless ~/.no_auto_tmux is."),
    Fault("ip_with_spaces", VAST, "public_ipaddr has white space around it."),
    Fault("box_cut_off", BOTH, "The box cannot reach the provider's API."),
    Fault("container_key_dead", VAST, "The container's own key is refused."),
    Fault(
        "price_up",
        BOTH,
        "The instance costs this many times what was quoted, in its row and on the meter.",
        (*INSTANCE, ("factor", 1.5)),
        "made",
    ),
    Fault(
        "disk_price_up",
        VAST,
        "The instance's disk alone costs this many times what was quoted, in its row and on the "
        "meter.",
        (*INSTANCE, ("factor", 2)),
        "made",
    ),
    Fault(
        "traffic",
        VAST,
        "The instance moves this much, beside what its box really does.",
        (*INSTANCE, ("up_gb", 1), ("down_gb", 10)),
        "running",
    ),
    Fault("container_restart", BOTH, "The container restarts: same boot id.", INSTANCE, "running"),
    Fault("host_reboot", BOTH, "The machine reboots: a new boot id.", INSTANCE, "running"),
    Fault("recycle", VAST, "The container is made anew: its disk is wiped.", INSTANCE, "running"),
    Fault(
        "outbid",
        BOTH,
        "Stopped in favour of a higher bid; at Prime, how is STOPPED or TERMINATED.",
        (*INSTANCE, ("how", "STOPPED")),
        "running",
    ),
    Fault(
        "resume_after_s",
        BOTH,
        "What was outbid starts again by itself after this time.",
        (("seconds", 21600),),
    ),
    Fault(
        "start_queued",
        VAST,
        "A start is refused and queued; after this time it starts and bills (null: never).",
        (("starts_after_s", None),),
    ),
    Fault(
        "status_word",
        BOTH,
        "The row says this status: offline, unknown, frozen, or a word nobody knows.",
        (*INSTANCE, ("word", "unknown")),
        "running",
    ),
    Fault(
        "relabel",
        BOTH,
        "The label is changed in the console.",
        (*INSTANCE, ("label", "renamed")),
        "made",
    ),
    Fault("console_destroy", BOTH, "It is destroyed in the console.", INSTANCE, "made"),
    Fault(
        "twin_label",
        BOTH,
        "Another instance bears the same label, made this many seconds earlier.",
        (*INSTANCE, ("seconds_before", 0)),
        "made",
    ),
)

END = (
    Fault(
        "delete_lies",
        BOTH,
        "DELETE answers success and does nothing.",
        (("times", None), ("instance", None)),
    ),
    Fault("delete_404", PRIME, "DELETE ends the pod, but answers 404.", (("times", None),)),
    Fault("deleting_s", PRIME, "A pod stays in DELETING, and bills.", (("seconds", 3600),)),
    Fault("terminated_listed_s", PRIME, "TERMINATED pods stay listed.", (("seconds", 600),)),
    Fault("history_lag_s", PRIME, "History lags behind by this much.", (("seconds", 150),)),
    Fault("tail_s", BOTH, "Billing goes on this long after DELETE.", (("seconds", 318),)),
    Fault(
        "id_reuse",
        BOTH,
        "The id of what is gone is given to a box of somebody else in the account.",
        (*INSTANCE, ("label", "somebody-elses")),
        "gone",
    ),
    Fault(
        "schedule_refused",
        VAST,
        "No scheduled job is accepted.",
        (("status", 403), ("times", None)),
    ),
    Fault(
        "schedule_answer_lost",
        VAST,
        "The answer to a new scheduled job is lost, before or after it is made.",
        (("when", "after"), ("times", 1)),
    ),
)

FAULTS = (*WIRE, *ACCOUNT, *SEARCH, *CREATE, *LISTS, *LIFE, *END)
