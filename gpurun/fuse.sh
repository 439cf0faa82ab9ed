#!/bin/sh
# gpurun's fuse: ends this box at its deadline, whatever became of the controller.
#   sh fuse.sh arm SEQ FIRES ENDS LEFT NOW | start | report | disarm
# fuse.timer: seq label fires_at ends_at left_s armed_uptime boot_key offset
set -f
label=@label@
margin_s=@margin_s@
term_delay_s=@term_delay_s@
self_destroy=@self_destroy@
terminate=@terminate@
last_resort=@last_resort@
# Not every busybox has nohup, and a Mac has no setsid.
detached=$(command -v setsid || command -v nohup)
case $0 in fuse.sh) ;; *) mkdir -p @home@ && cd @home@ || exit 9 ;; esac

# The clocks set a variable rather than print: a fork each second is most of what a fuse costs.
uptime_s() { up_s=; @uptime@; }
wall_s() { @wall@; }

number() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }

start_of() { # PID: sets start, its start time; empty for what is dead or a zombie
    start= stat=
    { IFS= read -r stat < "/proc/$1/stat"; } 2>/dev/null
    set -- ${stat##*) }
    case $1 in '' | Z | X) return 1 ;; esac
    start=${20}
}

boot_key() { # boot id and start of PID 1: a restarted container keeps its host's boot id
    key=-
    { read -r key < /proc/sys/kernel/random/boot_id; } 2>/dev/null
    start_of 1
    key=$key.$start
}

alive() { # is the process that fuse.pid names there?
    pid= pid_start=
    { read -r pid pid_start < fuse.pid; } 2>/dev/null
    number "$pid" || return 1
    if [ -e /proc/self/stat ]; then
        start_of "$pid" && [ "$start" = "$pid_start" ]
    else
        kill -0 "$pid" 2>/dev/null
    fi
}

save() { # LINE
    { printf '%s\n' "$1" > fuse.timer.$$ && mv -f fuse.timer.$$ fuse.timer; } 2>/dev/null && return
    rm -f fuse.timer.$$
    return 1
}

read_file() { # sets n_*
    n_seq= n_label= n_fires=
    {
        read -r n_seq n_label n_fires n_ends n_left n_up n_key n_off n_more < fuse.timer
    } 2>/dev/null
    [ "$n_label" = "$label" ] && number "$n_seq"
}

load() { # take in the file; what is missing, torn or older changes nothing
    read_file || return 0
    if [ "$n_seq" -lt "$seq" ]; then
        save "$line"
    elif [ "$n_fires" = disarmed ]; then
        status=disarmed
    elif number "$n_fires" && number "$n_ends" && number "${n_left#-}" && number "$n_up" \
        && number "${n_off#-}" && [ -z "$n_more" ]; then
        [ "$n_seq" = "$seq" ] || status=armed termed= failures=0 pause=0
        seq=$n_seq fires=$n_fires ends=$n_ends left_then=$n_left up_then=$n_up
        key_then=$n_key offset=$n_off
        line="$seq $label $fires $ends $left_then $up_then $key_then $offset"
    fi
}

measure() { # sets left: seconds to ends_at
    uptime_s
    if number "$up_s" && [ "$key_then" = "$key" ] && [ "$up_s" -ge "$up_then" ]; then
        left=$((left_then - (up_s - up_then)))
    else
        wall_s
        left=$((ends - (wall_now - offset)))
    fi
}

moment() { # sets at: seconds on whatever clock there is, to tell a beat's age
    uptime_s
    if number "$up_s"; then at=$up_s; else wall_s && at=$wall_now; fi
}

beat() { # over the old bytes, so that it needs no room on a full disk
    moment
    { printf '%s\n' "$$ $seq $ends $at $status " 1<> fuse.beat; } 2>/dev/null
}

claim() {
    start_of $$
    { echo "$$ $start" > fuse.pid.$$ && mv -f fuse.pid.$$ fuse.pid; } 2>/dev/null && return
    rm -f fuse.pid.$$
    { echo "$$ $start" 1<> fuse.pid; } 2>/dev/null # the disk is full: over the old bytes
}

nap() { # SECONDS, or until a signal says that the file is new
    sleep "$1" &
    [ -n "$woken" ] || wait $!
    woken=
}

bounded() { # SECONDS TEXT: run it in its own session, for so long at most
    (cd / && exec $detached sh -c "$2") < /dev/null > /dev/null 2>&1 &
    child=$! waited=0
    while kill -0 "$child" 2>/dev/null && [ "$waited" -lt "$1" ]; do
        sleep 1
        waited=$((waited + 1))
        beat
    done
    if kill -0 "$child" 2>/dev/null; then
        kill -9 -"$child" 2>/dev/null || kill -9 "$child"
    fi
    wait "$child"
}

fire() { # one attempt; the next in 5, 10, 20, 40, 60, 60 ... s
    status=fired
    beat
    bounded 60 "$self_destroy" && exit 0
    failures=$((failures + 1))
    [ "$failures" -lt 10 ] || bounded 60 "$last_resort"
    case $failures in 1) pause=5 ;; 2) pause=10 ;; 3) pause=20 ;; 4) pause=40 ;; *) pause=60 ;; esac
}

run() {
    trap : HUP INT TERM
    trap woken=1 USR1
    { echo -1000 > /proc/$$/oom_score_adj; } 2>/dev/null
    ! alive || exit 0
    claim
    boot_key
    here=$(pwd)
    seq=0 ends=0 status=armed woken= termed= failures=0 pause=0
    while :; do
        cd "$here" 2>/dev/null # removed and made anew: another fuse may be in it
        if alive; then [ "$pid" = $$ ] || exit 0; else claim; fi
        load
        wait_s=5
        if [ "$status" = disarmed ]; then
            beat
            exit 0
        elif [ "$seq" -gt 0 ]; then
            measure
            to_term=$((left - (ends - fires) + term_delay_s))
            to_fire=$((left + margin_s))
            if [ -z "$termed" ] && [ "$to_term" -le 0 ]; then
                termed=1
                (cd / && exec $detached sh -c "$terminate") < /dev/null > /dev/null 2>&1 &
            fi
            if [ "$to_fire" -le 0 ]; then # by the file as it was read just now
                [ "$pause" -gt 0 ] || fire
                [ "$pause" -ge 5 ] || wait_s=$pause
                pause=$((pause - wait_s))
            else
                [ "$to_fire" -ge 5 ] || wait_s=$to_fire
                [ "$to_term" -lt 1 ] || [ "$to_term" -ge "$wait_s" ] || wait_s=$to_term
            fi
        fi
        beat
        nap "$wait_s"
    done
}

begin() { # one process, in a session of its own
    ! alive || return 0
    $detached sh fuse.sh run < /dev/null > /dev/null 2>&1 &
}

newer() { # SEQ FIRES ENDS LEFT: a greater seq; or the same timer, measured after a reboot or sooner
    read_file || return 0
    [ "$1" -gt "$n_seq" ] && return
    [ "$1 $2 $3" = "$n_seq $n_fires $n_ends" ] || return
    [ "$n_key" != "$key" ] || [ $((${up_s:-0} + $4)) -lt $((n_up + n_left)) ]
}

held() { # sets b_*: what the process last said
    b_pid= b_seq=0 b_ends=0 b_at= b_status=armed
    { read -r b_pid b_seq b_ends b_at b_status rest < fuse.beat; } 2>/dev/null
    alive && [ "$pid" = "$b_pid" ]
}

short() { sleep 0.05 2>/dev/null || sleep 1; }

report() {
    living=0 age=-1
    ! held || living=1
    moment
    ! number "$b_at" || age=$((at - b_at))
    if [ "$living" = 0 ] && read_file && [ "$n_fires" = disarmed ]; then b_status=disarmed; fi
    echo "gpurun-fuse $b_seq $b_ends $age $b_status $living"
}

arm() { # SEQ FIRES ENDS LEFT NOW
    boot_key
    uptime_s
    wall_s
    if newer "$1" "$2" "$3" "$4"; then
        save "$1 $label $2 $3 $4 ${up_s:-0} $key $((wall_now - $5))"
    fi
    if read_file && [ "$n_fires" = disarmed ]; then report && return; fi
    begin
    ! alive || kill -USR1 "$pid" 2>/dev/null
    tries=0
    until held && [ "$b_seq" -ge "$1" ] || [ "$tries" -ge 120 ]; do
        short
        tries=$((tries + 1))
    done
    report
}

disarm() {
    read_file || n_seq=0
    held
    [ "$b_seq" -le "$n_seq" ] || n_seq=$b_seq
    save "$n_seq $label disarmed" || echo "$n_seq $label disarmed" > fuse.timer
    ! alive || kill -USR1 "$pid" 2>/dev/null
    tries=0
    while alive && [ "$tries" -lt 100 ]; do
        short
        tries=$((tries + 1))
    done
    report
}

case $1 in
    arm) shift && arm "$@" ;;
    start) begin && report ;;
    run | report | disarm) "$1" ;;
    *) exit 2 ;;
esac
exit
