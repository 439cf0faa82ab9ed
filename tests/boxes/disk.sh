# What of a box outlives its processes: disk, network, name.  It lasts until standard input ends.
set -eu
mount -t tmpfs -o "size=${DISK_MB}m,mode=755" disk "$STATE/disk"
cd "$STATE/disk"
mkdir up work root
for hidden in $HIDDEN; do
  mkdir -p "up$hidden"
  setfattr -n trusted.overlay.opaque -v y "up$hidden"
done
mount -t overlay -o "lowerdir=$LOWER,upperdir=up,workdir=work" box root
hostname "$NAME"
echo ready
read -r _ || exit 0
