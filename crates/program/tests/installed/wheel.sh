# In the root of `try.sh`: the wheel, in an environment of its own with the root's numpy.
set -ex
python3 -m venv --system-site-packages /tmp/environment
PATH=/tmp/environment/bin:/usr/sbin:/usr/bin:/sbin:/bin
pip install --no-index --no-deps "$1"
uzswap --version
cat > /tmp/job.py <<'JOB'
import numpy, os, uzswap
if os.path.exists("/dev/userfaultfd"):
    with uzswap.memory(ram="32M"):
        a = numpy.zeros(16 << 20)
        a[:] = 1.5
    assert a.sum() == 1.5 * len(a)
page = b"page" * 1024
assert uzswap.decompress(uzswap.compress(page)) == page
JOB
python /tmp/job.py
ls /tmp/environment/lib/python3*/site-packages/uzswap-*.dist-info/licenses/THIRD-PARTY-NOTICES.md
. /tmp/manage.sh
