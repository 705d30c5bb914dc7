"""Relatives that fork, write to pages in common, end and are killed, for some seconds. Each one
checks its own bytes. Prints the number of those that ended badly."""

import mmap
import os
import random
import signal
import sys
import time

COUNT = 100 * 256
KILLED_OR_WELL = (0, signal.SIGKILL)
heap = mmap.mmap(-1, COUNT * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
versions = {}


def page(number, version):
    return random.Random(number * 7919 + version).randbytes(900)


def put(number, version):
    heap[number * 4096 : number * 4096 + 900] = page(number, version)
    versions[number] = version


def check(number):
    if heap[number * 4096 : number * 4096 + 900] != page(number, versions.get(number, 0)):
        os.write(2, b"wrong: page %d\n" % number)
        os._exit(9)


def live(seed, depth):
    choose = random.Random(seed)
    own = mmap.mmap(-1, 12 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, 12 << 20, 4096):
        own[at : at + 500] = choose.randbytes(500)
    end = time.time() + choose.uniform(0.5, 5)
    while time.time() < end:
        for _ in range(200):
            number = choose.randrange(COUNT)
            check(number)
            if choose.random() < 0.1:
                put(number, choose.choice([0, seed & 255]))
        if depth < 2 and choose.random() < 0.02:
            child = os.fork()
            if child == 0:
                live(seed * 31 + 1, depth + 1)
            if os.waitpid(child, 0)[1] not in KILLED_OR_WELL:
                os._exit(8)
        time.sleep(choose.choice([0, 0, 0.05, 0.2]))
    for number in choose.sample(range(COUNT), 3000):
        check(number)
    os._exit(0)


for number in range(COUNT):
    put(number, 0)
end, choose = time.time() + float(sys.argv[1]), random.Random(1)
children, bad = set(), 0
while time.time() < end or children:
    while time.time() < end and len(children) < 6:
        seed = choose.randrange(1 << 30)
        child = os.fork()
        if child == 0:
            live(seed, 0)
        children.add(child)
    if children and choose.random() < 0.05:
        os.kill(choose.choice(list(children)), signal.SIGKILL)
    for _ in range(100):
        number = choose.randrange(COUNT)
        check(number)
        if choose.random() < 0.02:
            put(number, choose.randrange(3))
    child, status = os.waitpid(-1, os.WNOHANG) if children else (0, 0)
    children.discard(child)
    bad += status not in KILLED_OR_WELL
    time.sleep(0.02)
for number in range(COUNT):
    check(number)
print("bad", bad)
