"""Arrays in a budget of a third of what they want, compared with plain ones. Run with `python -m unittest discover bindings/python/tests`, the
package being installed."""

import asyncio
import contextvars
import gc
import io
import multiprocessing
import os
import pathlib
import subprocess
import sys
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy

import uzswap

RAM = 48 << 20
ROWS, COLUMNS = 4096, 4608  # 144 MiB of float64


def anonymous_bytes():
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("RssAnon:"))
    return int(line.split()[1]) << 10


def why_not():
    try:
        with uzswap.memory(ram=RAM):
            return ""
    except OSError as error:
        return str(error)


WHY_NOT = why_not()


def is_paged(array):
    """Whether an array is one of the package's, and large enough."""
    core = numpy._core if hasattr(numpy, "_core") else numpy.core
    return core.multiarray.get_handler_name(array) == "uzswap"


def figures():
    gc.collect()
    return uzswap.stats()


def row_of(row):
    return numpy.arange(COLUMNS) // 7 + row


def squares_in_a_worker(row):
    """In a forked process: an array of its own, in a budget of its own."""
    with uzswap.memory(ram="8M"):
        a = numpy.arange(3 << 20) // 50
        return int((a * row).sum()), uzswap.stats().ram_bytes, uzswap.stats().pages_out > 0


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Arrays(unittest.TestCase):
    def test_numpy(self):
        """The same numbers as in rows of plain arrays."""
        with uzswap.memory(ram=RAM):
            a = numpy.zeros((ROWS, COLUMNS))
        self.assertIs(type(a), numpy.ndarray)
        self.assertTrue(is_paged(a))
        self.assertGreaterEqual(uzswap.stats().region_bytes, a.nbytes)
        for row in range(ROWS):
            a[row] = row_of(row)
        for row in range(ROWS):
            self.assertTrue((a[row] == row_of(row)).all(), row)
        sums = [row_of(row).sum() for row in range(ROWS)]
        self.assertTrue((a.sum(axis=1) == sums).all())
        stats = uzswap.stats()
        self.assertGreater(stats.pages_out, 0)
        self.assertGreater(stats.pages_in, 0)
        self.assertEqual(stats.ram_bytes, RAM)

    def test_budget(self):
        """What the kernel counts stays within 3 % and 8 MiB of the budget, in a process that does nothing else."""
        done = subprocess.run([sys.executable, __file__, "--budget"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertLessEqual(int(done.stdout), RAM * 1.03 + (8 << 20))

    def test_operations(self):
        """Sorting, broadcasting, slices, copies."""
        random = numpy.random.default_rng(1)
        plain = random.integers(0, 1 << 20, 4 << 20)
        with uzswap.memory(ram=RAM):
            paged = plain.copy()
            self.assertTrue(is_paged(paged))
            paged.sort()
            squares = paged * paged + paged[::-1]
            turned = numpy.ascontiguousarray(paged.reshape(2048, -1).T)
        plain.sort()
        self.assertTrue((paged == plain).all())
        self.assertTrue((squares == plain * plain + plain[::-1]).all())
        self.assertTrue((turned == plain.reshape(2048, -1).T).all())

    def test_resizing(self):
        """realloc(): longer in place or elsewhere, by zeroes; shorter; from small to large; after the block, too."""
        words = numpy.arange(3 << 20) // 9
        with uzswap.memory(ram=RAM):
            a = words.copy()
            behind = numpy.ones(1 << 20)  # in the way of growing in place
            a.resize(6 << 20, refcheck=False)
            self.assertTrue((a[: 3 << 20] == words).all())
            self.assertFalse(a[3 << 20 :].any())
            small = numpy.arange(1000)
        a.resize(9 << 20, refcheck=False)
        self.assertTrue((a[: 3 << 20] == words).all() and not a[3 << 20 :].any())
        a.resize(100, refcheck=False)
        self.assertTrue((a == words[:100]).all() and behind.all())
        before = uzswap.stats().regions
        small.resize(4 << 20, refcheck=False)
        self.assertEqual(uzswap.stats().regions, before + 1)
        self.assertTrue((small[:1000] == numpy.arange(1000)).all() and not small[1000:].any())

    def test_what_grows_as_it_is_read(self):
        """numpy.fromiter() and numpy.fromfile() begin small and grow by realloc()."""
        with uzswap.memory(ram=RAM):
            before = uzswap.stats().regions
            a = numpy.fromiter((index // 3 for index in range(1 << 20)), dtype=numpy.int64)
            self.assertEqual(uzswap.stats().regions, before + 1)
            text = numpy.fromstring(" ".join(str(index // 3) for index in range(1 << 19)), dtype=numpy.int64, sep=" ")
        self.assertTrue((a == numpy.arange(1 << 20) // 3).all())
        self.assertTrue((text == numpy.arange(1 << 19) // 3).all())

    def test_files(self):
        """System calls read and write pages that are out."""
        with uzswap.memory(ram=RAM):
            a = numpy.arange(12 << 20) // 50
        file = io.BytesIO()
        numpy.save(file, a)
        file.seek(0)
        with uzswap.memory(ram=RAM):
            self.assertTrue((numpy.load(file) == a).all())
        reader, writer = os.pipe()
        thread = threading.Thread(target=lambda: (os.writev(writer, [a.data.cast("B")[: 1 << 16]]), os.close(writer)))
        thread.start()
        with os.fdopen(reader, "rb") as pipe:
            self.assertEqual(pipe.read(), a[: 1 << 13].tobytes())
        thread.join()

    def test_what_is_freed_is_gone(self):
        before = figures().regions
        with uzswap.memory(ram=RAM):
            for _ in range(20):
                a = numpy.ones(8 << 20, dtype=numpy.uint8)
                self.assertTrue(a.all())
                z = numpy.zeros(8 << 20, dtype=numpy.uint8)
                self.assertFalse(z.any())
        del a, z
        self.assertEqual(figures().regions, before)

    def test_small_arrays_and_the_end_of_a_block(self):
        with uzswap.memory(ram=RAM, smallest="2M"):
            before = uzswap.stats().regions
            small = numpy.zeros(1 << 20, dtype=numpy.uint8)
            self.assertEqual(uzswap.stats().regions, before)
            with uzswap.memory(ram=RAM, smallest="1M"):
                large = numpy.zeros(1 << 20, dtype=numpy.uint8)
                self.assertEqual(uzswap.stats().regions, before + 1)
            again = numpy.zeros(1 << 20, dtype=numpy.uint8)
        after = numpy.zeros(8 << 20, dtype=numpy.uint8)
        self.assertEqual(uzswap.stats().regions, before + 1)
        self.assertFalse(small.any() or large.any() or again.any() or after.any())
        self.assertFalse(is_paged(after))
        empty = numpy.empty(0)
        self.assertEqual(empty.nbytes, 0)

    def test_nested_blocks(self):
        """The last block that is open has the budget; its end gives the outer one's back."""
        with uzswap.memory(ram=RAM) as outer:
            with uzswap.memory(ram=2 * RAM):
                self.assertEqual(uzswap.stats().ram_bytes, 2 * RAM)
                with outer:
                    self.assertEqual(uzswap.stats().ram_bytes, RAM)
                self.assertEqual(uzswap.stats().ram_bytes, 2 * RAM)
            self.assertEqual(uzswap.stats().ram_bytes, RAM)
            with self.assertRaises(ZeroDivisionError):
                with uzswap.memory(ram=3 * RAM):
                    1 / 0
            self.assertEqual(uzswap.stats().ram_bytes, RAM)
            self.assertTrue(is_paged(numpy.zeros(1 << 20)))
        self.assertEqual(uzswap.stats().ram_bytes, RAM)
        self.assertFalse(is_paged(numpy.zeros(1 << 20)))

    def test_decorator_and_tasks(self):
        @uzswap.memory(ram=RAM)
        def zeroes(count):
            return numpy.zeros(count)

        self.assertTrue(is_paged(zeroes(1 << 20)))
        self.assertFalse(is_paged(numpy.zeros(1 << 20)))

        async def task(ram):
            with uzswap.memory(ram=ram):
                await asyncio.sleep(0)
                a = numpy.zeros(1 << 20)
                await asyncio.sleep(0)
            return is_paged(a) and not is_paged(numpy.zeros(1 << 20))

        async def tasks():
            return await asyncio.gather(*[task(RAM) for _ in range(5)])

        self.assertTrue(all(asyncio.run(tasks())))
        self.assertEqual(uzswap.stats().ram_bytes, RAM)

    def test_threads(self):
        """Threads that use one array, that have blocks of their own, and that run in a copy of this context."""
        with uzswap.memory(ram=RAM):
            a = numpy.zeros((8, 2 << 20))
            copies = [contextvars.copy_context() for _ in range(4)]
        errors = []

        def work(row):
            a[row] = numpy.arange(2 << 20) // 9 * row
            if not (a[row] == numpy.arange(2 << 20) // 9 * row).all():
                errors.append(row)

        def allocate(row):
            with uzswap.memory(ram=RAM):
                for turn in range(5):
                    b = numpy.full(1 << 18, row * 100 + turn)
                    b.resize((1 << 18) + (turn << 16), refcheck=False)
                    if not is_paged(b) or not (b[: 1 << 18] == row * 100 + turn).all() or b[1 << 18 :].any():
                        errors.append((row, turn))

        threads = [threading.Thread(target=act, args=[row]) for act in (work, allocate) for row in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        with ThreadPoolExecutor(4) as pool:
            made = [pool.submit(context.run, numpy.ones, 1 << 20) for context in copies]
            self.assertTrue(all(is_paged(one.result()) and one.result().all() for one in made))

    def test_fork(self):
        with uzswap.memory(ram=RAM):
            a = numpy.arange(12 << 20) // 50
            child = os.fork()
            if child == 0:
                same = (a == numpy.arange(12 << 20) // 50).all()
                a.resize(13 << 20, refcheck=False)
                same &= not a[12 << 20 :].any() and a[: 12 << 20].sum() == (numpy.arange(12 << 20) // 50).sum()
                del a
                os._exit(7 if same and uzswap.stats().regions == 0 else 1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
            self.assertTrue((a == numpy.arange(12 << 20) // 50).all())
            self.assertEqual(subprocess.run(["echo", "hello"], capture_output=True).stdout, b"hello\n")

    def test_forked_workers_have_budgets_of_their_own(self):
        with uzswap.memory(ram=RAM):
            a = numpy.arange(12 << 20) // 50
            with multiprocessing.get_context("fork").Pool(2) as pool:
                found = pool.map(squares_in_a_worker, range(4))
        total = int((numpy.arange(3 << 20) // 50).sum())
        self.assertEqual(found, [(total * row, 8 << 20, True) for row in range(4)])
        self.assertEqual(int(a.sum()), int((numpy.arange(12 << 20) // 50).sum()))

    def test_objects_and_strings(self):
        """References in a region are references."""
        with uzswap.memory(ram=RAM):
            objects = numpy.array([str(index) for index in range(1 << 18)], dtype=object)
            texts = numpy.array([str(index) for index in range(1 << 18)])
        self.assertTrue(is_paged(objects) and is_paged(texts))
        gc.collect()
        self.assertEqual(objects.tolist(), [str(index) for index in range(1 << 18)])
        self.assertEqual(texts.tolist(), [str(index) for index in range(1 << 18)])

    def test_pandas(self):
        """A join and a grouping, as with plain frames; then again of what was made inside, outside."""
        try:
            import pandas
        except ImportError as error:
            self.skipTest(str(error))

        def job():
            keys = numpy.arange(2 << 20) % 1009
            frame = pandas.DataFrame({"key": keys, "value": numpy.arange(2 << 20) // 3, "more": keys * 0.5})
            names = pandas.DataFrame({"key": numpy.arange(1009), "factor": numpy.arange(1009) % 17})
            joined = frame.merge(names, on="key")
            joined["product"] = joined["value"] * joined["factor"] + joined["more"]
            return joined, joined.groupby("factor")["product"].agg(["sum", "min", "max", "count"])

        joined, plain = job()
        before = figures()
        with uzswap.memory(ram=RAM):
            paged_joined, paged = job()
            self.assertGreater(uzswap.stats().pages_out, before.pages_out)
        pandas.testing.assert_frame_equal(plain, paged)
        pandas.testing.assert_frame_equal(joined, paged_joined)
        pandas.testing.assert_frame_equal(joined.sort_values("more"), paged_joined.sort_values("more"))

    def test_too_much(self):
        """An allocation that fails is a MemoryError, as usual."""
        with uzswap.memory(ram=RAM):
            with self.assertRaises(MemoryError):
                numpy.zeros(1 << 50, dtype=numpy.uint8)

    def test_what_is_refused(self):
        for wrong in ["", "two", "5X", "-1", -1, "9" * 400, "9" * 5000 + "G", 1 << 70, numpy.int64(-1), "٣G"]:
            with self.assertRaises(ValueError):
                uzswap.memory(ram=wrong)
        for wrong in [None, 1.5, True, numpy.float64(1e9), b"1G"]:
            with self.assertRaises(TypeError):
                uzswap.memory(ram=wrong)
        with self.assertRaisesRegex(ValueError, "8 MiB"):
            with uzswap.memory(ram=1000):
                pass
        with self.assertRaisesRegex(ValueError, "auto"):
            with uzswap.memory(ram=RAM, compressor="lz4"):
                pass
        with self.assertRaisesRegex(ValueError, "swap file"):
            with uzswap.memory(ram=RAM, swap="1G"):
                pass
        self.assertEqual(uzswap.stats().ram_bytes, RAM)
        self.assertFalse(is_paged(numpy.zeros(1 << 20)))
        with uzswap.memory(ram="0.046875 GiB", compressor="auto"):
            self.assertEqual(uzswap.stats().ram_bytes, RAM)

    def test_the_end(self):
        """A program that ends inside a block, with arrays that are out, ends as any other."""
        script = (
            "import sys, numpy, uzswap\n"
            "block = uzswap.memory(ram='8M'); block.__enter__()\n"
            "a = numpy.arange(6 << 20) // 50\n"
            "assert uzswap.stats().pages_out > 0\n"
            "sys.exit(int(a[-1]) % 100)\n"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (((6 << 20) - 1) // 50 % 100, ""))


@unittest.skipIf(WHY_NOT, WHY_NOT)
class SwapFile(unittest.TestCase):
    """Each in a process of its own: the first block decides whether there is a swap file."""

    def run_script(self, script):
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        if "lies in memory" in done.stderr:
            self.skipTest(done.stderr.strip().splitlines()[-1])
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_noise(self):
        """Random numbers, three times the budget, come back, and the budget is held."""
        self.run_script(
            "import os, numpy, uzswap\n"
            "def anonymous():\n"
            "    line = next(line for line in open('/proc/self/status') if line.startswith('RssAnon:'))\n"
            "    return int(line.split()[1]) << 10\n"
            "before, peak = anonymous(), 0\n"
            "with uzswap.memory(ram='32M', swap='512M', swap_dir=os.environ.get('TMPDIR', '/var/tmp')):\n"
            "    arrays = []\n"
            "    for seed in range(24):\n"
            "        arrays.append(numpy.random.default_rng(seed).integers(0, 1 << 62, 1 << 19))\n"
            "        peak = max(peak, anonymous())\n"
            "for seed, array in enumerate(arrays):\n"
            "    plain = numpy.random.default_rng(seed).integers(0, 1 << 62, 1 << 19)\n"
            "    assert (array == plain).all(), seed\n"
            "stats = uzswap.stats()\n"
            "assert stats.pages_written > 1000 and stats.disk_faults > 0, stats\n"
            "assert peak - before < (32 << 20) * 103 // 100 + (12 << 20), (before, peak, stats)\n"
        )

    def test_what_is_refused(self):
        self.run_script(
            "import uzswap\n"
            "for wrong, error in [(dict(swap='1G', swap_dir='/no/such/place'), OSError), (dict(swap=5), ValueError)]:\n"
            "    try:\n"
            "        with uzswap.memory(ram='32M', **wrong): pass\n"
            "    except error: pass\n"
            "    else: raise AssertionError(wrong)\n"
        )


class Interface(unittest.TestCase):
    def test_sizes_are_integers_of_any_type_or_texts(self):
        for size in [RAM, numpy.int64(RAM), numpy.uint32(RAM), "48M", "49152k", "0.046875 GiB"]:
            self.assertIn("ram=48 MiB", repr(uzswap.memory(ram=size)))

    def test_the_representation_has_budget_and_use(self):
        self.assertRegex(repr(uzswap.memory(ram="1.5G")), r"^<uzswap\.memory ram=1\.5 GiB: arrays of .*B use .*B>$")

    def test_the_version_is_that_of_the_package(self):
        self.assertRegex(uzswap.__version__, r"^\d+\.\d+\.\d+")

    def test_paths_may_be_objects(self):
        uzswap.memory(ram=RAM, swap="1G", swap_dir=pathlib.Path("/var/tmp"))

    def test_help_fits_a_terminal_and_explains_every_field(self):
        for thing in (uzswap, uzswap.memory, uzswap.Stats, uzswap.compress, uzswap.sizes):
            for line in (thing.__doc__ or "").splitlines():
                self.assertLessEqual(len(line), 76, line)
        for name in uzswap.Stats._fields:
            self.assertRegex(uzswap.Stats.__doc__, rf"\n    {name}:\n        [A-Z]")
        self.assertIn("Begins the block", uzswap.memory.__enter__.__doc__)


class Program(unittest.TestCase):
    def test_it_is_on_the_path(self):
        program = os.path.join(os.path.dirname(sys.executable), "uzswap")
        if not os.path.exists(program):
            self.skipTest("the wheel is not installed in this environment")
        version = subprocess.run([program, "--version"], capture_output=True, text=True)
        self.assertEqual(version.returncode, 0, version.stderr)
        self.assertTrue(version.stdout.startswith("uzswap"), version.stdout)


def budget():
    """Prints by how many bytes this process grew, at most, while an array of three times the budget was filled and read."""
    before = anonymous_bytes()
    peak = before
    with uzswap.memory(ram=RAM):
        a = numpy.zeros((ROWS, COLUMNS))
    for is_read in [False, True]:
        for row in range(ROWS):
            if is_read:
                assert (a[row] == row_of(row)).all(), row
            else:
                a[row] = row_of(row)
            if row % 16 == 0:
                peak = max(peak, anonymous_bytes())
    print(peak - before)


if __name__ == "__main__":
    if sys.argv[1:] == ["--budget"]:
        budget()
    else:
        unittest.main()
