#!/bin/sh
# gpurun's push: copies what a run collects from its box to where it is kept.
#   sh push.sh prove    push one small file, before anything depends on it
#   sh push.sh watch    push whatever has settled, for as long as the box lives
#   sh push.sh once     push now whatever is there
# The credential lies on tmpfs alone; what is pushed is what .gpurun/collect.txt names.
set -f
cd "$(dirname "$0")/.." || exit 9
credential=@credential@
target=@target@
every_s=@every_s@
mine=.gpurun/push

listing() { # the files, one a line: size, time and name; names with line ends are left out
    python3 - <<'END'
import glob, os
root, seen = os.path.realpath("."), set()
for pattern in open(".gpurun/collect.txt").read().splitlines():
    for path in glob.glob(pattern, recursive=True):
        inside = [os.path.join(d, f) for d, _, fs in os.walk(path) for f in fs]
        for name in inside if os.path.isdir(path) else [path]:
            seen.add(os.path.normpath(name))
for name in sorted(seen):
    real = os.path.realpath(name)
    if "\n" in name or name.endswith((".tmp", ".part")) or not real.startswith(root + os.sep):
        continue
    if os.path.isfile(real):
        info = os.stat(real)
        print(info.st_size, info.st_mtime_ns, name)
END
}

to_remote() { # NAMES: by rclone, configured by the environment alone
    rclone copy . "$target" --files-from-raw "$1" --config /dev/null --retries 1 --contimeout 10s
}

to_host() { # NAMES: by rsync over ssh; by tar where rsync is not on both sides
    host=${target%%:*} folder=${target#*:}
    umask 077
    printf '%s\n' "$COLLECT_TO_KEY" > "$credential.key"
    ssh="ssh -i $credential.key -o IdentitiesOnly=yes -o BatchMode=yes -o ConnectTimeout=15"
    ssh="$ssh -o StrictHostKeyChecking=accept-new -o UserKnownHostsFile=$PWD/$mine.known_hosts"
    [ -z "$COLLECT_TO_PORT" ] || ssh="$ssh -p $COLLECT_TO_PORT"
    quoted="'$(printf %s "$folder" | sed "s/'/'\\\\''/g")'"
    $ssh "$host" "mkdir -p $quoted" || return 1
    if command -v rsync > /dev/null && $ssh "$host" command -v rsync > /dev/null; then
        rsync -a --files-from="$1" -e "$ssh" . "$host:$folder/"
    else
        tar -cf - -T "$1" | $ssh "$host" "tar -xf - -C $quoted"
    fi
}

push() { # NAMES
    [ -s "$1" ] || return 0
    case $target in *@*:*) to_host "$1" ;; *) to_remote "$1" ;; esac
}

prove() {
    . "$credential" || exit 9
    date > $mine.proof && echo $mine.proof > $mine.names && push $mine.names
}

once() {
    . "$credential" || exit 9
    listing | cut -d ' ' -f 3- > $mine.names
    push $mine.names && date +%s > $mine.done
}

watch() { # a file that is the same for a round is whole
    . "$credential" || exit 9
    : > $mine.before
    : > $mine.pushed
    while :; do
        sleep "$every_s"
        listing > $mine.now
        grep -Fxf $mine.before $mine.now | grep -vFxf $mine.pushed > $mine.settled
        if [ -s $mine.settled ]; then
            cut -d ' ' -f 3- $mine.settled > $mine.names
            if push $mine.names; then
                cat $mine.settled >> $mine.pushed
                date +%s > $mine.done
                echo "pushed $(wc -l < $mine.settled) files to $target"
            fi
        fi
        mv $mine.now $mine.before
    done
}

case $1 in
    prove | once | watch) "$1" ;;
    *) exit 2 ;;
esac
