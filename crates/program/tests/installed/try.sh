# Runs a script with a package on an overlay over a root's files. Arguments: the script, which gets
# the package's path; the package; a directory for the overlay; the root, without which it is this
# machine's. In mounts of its own, which end with it. Status 77: this cannot be done here.
set -eu
script=$1 package=$2 base=$3 lower=${4:-/}
cannot() { echo "$1"; exit 77; }

mount --make-rprivate / || cannot "mounts cannot be made private"
mkdir -p "$base"
mount -t tmpfs tmpfs "$base" || cannot "no tmpfs can be mounted"
mkdir "$base/upper" "$base/work" "$base/root"
root=$base/root
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$base/upper,workdir=$base/work" "$root" || cannot "no overlay can be mounted"
mount --rbind /proc "$root/proc"
for directory in dev run tmp; do
    mount -t tmpfs tmpfs "$root/$directory"
done
chmod 1777 "$root/tmp"
# Devices of its own: owners and modes change.
mknod -m 0666 "$root/dev/null" c 1 3 || cannot "no devices can be made"
mknod -m 0666 "$root/dev/urandom" c 1 9
if [ -c /dev/userfaultfd ]; then
    mknod -m 0600 "$root/dev/userfaultfd" c $((0x$(stat -c %t /dev/userfaultfd))) $((0x$(stat -c %T /dev/userfaultfd)))
fi
# By these the program would know a container, where other things help.
rm -f "$root/.dockerenv"
cp "$package" "$root/tmp/"
cp "$script" "$root/tmp/inside"
cp "$(dirname "$script")/manage.sh" "$root/tmp/"
# A static program, for manage.sh.
if busybox=$(command -v busybox); then
    cp "$busybox" "$root/tmp/"
fi
exec chroot "$root" sh /tmp/inside "/tmp/$(basename "$package")"
