# Start a box: mounts as in a container, then sshd, or the systemd that starts it, as process 1.
set -eu

read_only() {
  mount --bind "$1" "$2"
  mount -o remount,bind,ro "$2"
}

cd "$STATE/disk/root"
mkdir -p proc sys dev run tmp var/tmp
chmod 1777 var/tmp
mount -t proc proc proc
mount --bind "$STATE/boot_id" proc/sys/kernel/random/boot_id
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 -o "$CGROUP_ACCESS" cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero random urandom tty full; do
  : >"dev/$node"
  mount --bind "/dev/$node" "dev/$node"
done
ln -s /proc/self/fd dev/fd
ln -s /proc/self/fd/0 dev/stdin
ln -s /proc/self/fd/1 dev/stdout
ln -s /proc/self/fd/2 dev/stderr
ln -s pts/ptmx dev/ptmx
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
mount -t tmpfs -o "size=${SHM_MB}m,mode=1777" shm dev/shm
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p run/sshd
read_only "$STATE/gpu" var/lib/gpu
for path in $SHARED; do
  if [ -d "$path" ]; then mkdir -p ".$path"; else mkdir -p ".${path%/*}"; : >>".$path"; fi
  read_only "$path" ".$path"
done
if [ "$WORKSPACE" = read-only ]; then read_only workspace workspace; fi
pivot_root . .
umount -l .
if [ "$INIT" = systemd ]; then
  export container=other  # else it looks for hardware
  exec chroot . /lib/systemd/systemd --unit=box.target --log-target=console --log-level=warning
fi
exec chroot . /usr/sbin/sshd -D -e -f /etc/ssh/box.conf
