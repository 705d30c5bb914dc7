/* Talks to a supervisor as no agent does: see ../intruders.rs.
 *
 *   outside SUPERVISOR ROUNDS   from outside of its tree: sends everything, and is to get nothing
 *   join                        as a process of the tree: prints what it was given, and whether that is as it should be
 *   garbage                     the same, and writes random words into what it may write, until its parent has ended
 *   noise SUPERVISOR            many descriptors to keep, many lines with control characters
 *   linger SUPERVISOR           from outside: sends descriptors that take an hour to be closed
 *   hold                        as a process of the tree: the same, and a userfaultfd that takes for ever to be read
 *   offer PID                   as a process of the tree: says that it is that process's agent, offers it what it will not
 *                               expect, and takes, until its parent has ended
 *   own SUPERVISOR              as a process of the tree: offers its own ends of connections, and ends
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <arpa/inet.h>
#include <dirent.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HELLO = 1, WELCOME = 2, SAY = 4, KEEP = 5, UNMANAGED = 7, SWAP = 8, OPEN = 10, AGREE = 12, RECORD = 14, OFFER = 16, TAKE = 17, KINDS = 20 };

struct packet {
	uint32_t kind, number;
	uint64_t token;
	uint32_t text_len, padding;
	char text[480];
};

static uint64_t seed = 88172645463325252u;

static uint64_t any(void)
{
	seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
	return seed;
}

static void fail(const char *what)
{
	printf("FAILED: %s (%s)\n", what, strerror(errno));
	exit(1);
}

static int connect_to(const char *name)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int socket_number = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	strncpy(address.sun_path + 1, name, sizeof address.sun_path - 2);
	socklen_t len = offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name);
	if (socket_number < 0 || connect(socket_number, (void *)&address, len) != 0)
		return close(socket_number), -1;
	struct timeval limit = { .tv_sec = 20 };
	setsockopt(socket_number, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	return socket_number;
}

static int give(int to, const void *bytes, size_t len, const int *descriptors, int count)
{
	struct iovec part = { (void *)bytes, len };
	union { char room[CMSG_SPACE(4 * 64)]; struct cmsghdr head; } control;
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1 };
	if (count > 0) {
		header.msg_control = &control;
		header.msg_controllen = CMSG_SPACE(4 * count);
		struct cmsghdr *message = CMSG_FIRSTHDR(&header);
		message->cmsg_level = SOL_SOCKET, message->cmsg_type = SCM_RIGHTS;
		message->cmsg_len = CMSG_LEN(4 * count);
		memcpy(CMSG_DATA(message), descriptors, 4 * count);
	}
	return sendmsg(to, &header, MSG_NOSIGNAL);
}

/* The bytes that came, and up to two descriptors. */
static int get(int from, void *bytes, size_t len, int descriptors[2])
{
	struct iovec part = { bytes, len };
	union { char room[CMSG_SPACE(4 * 8)]; struct cmsghdr head; } control;
	struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control };
	descriptors[0] = descriptors[1] = -1;
	int got = recvmsg(from, &header, 0);
	struct cmsghdr *message = got < 0 ? NULL : CMSG_FIRSTHDR(&header);
	if (message != NULL && message->cmsg_type == SCM_RIGHTS)
		memcpy(descriptors, CMSG_DATA(message), message->cmsg_len - CMSG_LEN(0) > 8 ? 8 : message->cmsg_len - CMSG_LEN(0));
	return got;
}

static const char *address_of(const char *supervisor)
{
	static char name[128];
	char line[512], wanted[64];
	snprintf(wanted, sizeof wanted, "@uzswap-%s-", supervisor);
	FILE *sockets = fopen("/proc/net/unix", "r");
	while (fgets(line, sizeof line, sockets) != NULL) {
		char *at = strstr(line, wanted);
		if (at != NULL && sscanf(at + 1, "%100s", name) == 1)
			break;
	}
	if (name[0] == 0)
		fail("no address");
	return name;
}

static void outside(const char *supervisor, int rounds)
{
	const char *name = address_of(supervisor);
	int pipes[2], connected = 0;
	if (pipe(pipes) != 0)
		fail("pipe");
	for (int round = 0; round < rounds; round++) {
		struct packet packet;
		int number = connect_to(name);
		if (number < 0 && errno == ECONNREFUSED)
			break;
		if (number < 0)
			fail("connect");
		connected++;
		size_t len = sizeof packet;
		for (size_t at = 0; at < sizeof packet; at += 8) {
			uint64_t word = any();
			memcpy((char *)&packet + at, &word, 8);
		}
		if (round % 3 != 0) {
			packet.kind = round % KINDS, packet.number = any() % 3, packet.token = any() % 2;
			strcpy(packet.text, "\033[31mFORGED\nuzswap: FORGED");
			packet.text_len = strlen(packet.text);
		} else if (any() % 2) {
			len = any() % sizeof packet;
		}
		int many[16];
		for (int at = 0; at < 16; at++)
			many[at] = pipes[at % 2];
		give(number, &packet, len, many, round % 4 == 1 ? 1 + any() % 16 : 0);
		char result[1024];
		int descriptors[2], got = get(number, result, sizeof result, descriptors);
		if (got > 0 || descriptors[0] >= 0)
			fail("something came back");
		if (got < 0 && errno != ECONNRESET)
			fail("the connection stays");
		close(number);
	}
	printf("%d connections, nothing came back\n", connected);
}

/* As the agent of process `program`, a pidfd, or of none: -1. */
static int hello_for(int program, int descriptors[2])
{
	struct packet packet = { .kind = HELLO };
	int number = connect_to(getenv("UZSWAP_SOCKET"));
	if (number < 0 || give(number, &packet, sizeof packet, &program, program >= 0) < 0)
		fail("hello");
	if (get(number, &packet, sizeof packet, descriptors) != sizeof packet || packet.kind != WELCOME)
		fail("no welcome");
	return number;
}

static int hello(int descriptors[2])
{
	return hello_for(-1, descriptors);
}

static uint64_t inode(int descriptor)
{
	struct stat status = { 0 };
	return fstat(descriptor, &status) == 0 ? status.st_ino : 0;
}

static uint64_t size(int descriptor)
{
	struct stat status = { 0 };
	return fstat(descriptor, &status) == 0 ? status.st_size : 0;
}

static int ask(int socket_number, int kind, int number)
{
	struct packet packet = { .kind = kind, .number = number };
	int descriptors[2];
	give(socket_number, &packet, sizeof packet, NULL, 0);
	if (get(socket_number, &packet, sizeof packet, descriptors) <= 0)
		fail("no reply");
	return descriptors[0];
}

static void join(void)
{
	int files[2], socket_number = hello(files), board = files[0];
	if (mmap(NULL, size(board), PROT_READ | PROT_WRITE, MAP_SHARED, board, 0) != MAP_FAILED)
		fail("the board can be mapped for writing");
	void *read_only = mmap(NULL, size(board), PROT_READ, MAP_SHARED, board, 0);
	if (read_only == MAP_FAILED || mprotect(read_only, size(board), PROT_READ | PROT_WRITE) == 0)
		fail("the board's mapping can be made writable");
	char path[64];
	snprintf(path, sizeof path, "/proc/self/fd/%d", board);
	int again = open(path, O_RDWR);
	if (pwrite(board, "x", 1, 0) >= 0 || (again >= 0 && pwrite(again, "x", 1, 0) >= 0) || ftruncate(board, 0) == 0)
		fail("the board can be written");
	printf("user %d board %lu ledger %lu file %lu table %lu\n", geteuid(), inode(files[0]), inode(files[1]),
	       inode(ask(socket_number, SWAP, 0)), inode(ask(socket_number, SWAP, 1)));
	if (ask(socket_number, RECORD, 0) >= 0 || ask(socket_number, SWAP, 2) >= 0 || ask(socket_number, OPEN, 7) >= 0)
		fail("there is something where nothing should be");
}

static void garbage(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	int files[2];
	hello(files);
	enum { HEAD_WORDS = 8, SLOTS = 1024, SLOT_WORDS = 816 };
	size_t len = size(files[1]);
	if (len / 8 != HEAD_WORDS + SLOTS * SLOT_WORDS)
		fail("the ledger's slots have another size");
	volatile uint64_t *words = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, files[1], 0);
	if (words == MAP_FAILED)
		fail("the ledger cannot be mapped");
	puts("begins");
	fflush(stdout);
	for (;;) {
		uint64_t values[] = { any(), 0, UINT64_MAX, 1ull << 62, any() % (1 << 30), 1 };
		/* The sum, and the slots: those in use come first. The word that asks for a pause is left as
		   it is: who may write that may have paging pause. */
		for (int times = 0; times < 40; times++) {
			size_t at = any() % 3 == 0 ? 0 : any() % (any() % 2 ? 4000 : len / 8);
			if (at < HEAD_WORDS || (at - HEAD_WORDS) % SLOT_WORDS > 1)
				words[at] = values[any() % 6];
		}
		usleep(any() % 3000);
	}
}

static int count(const char *directory)
{
	int entries = 0;
	DIR *all = opendir(directory);
	while (all != NULL && readdir(all) != NULL)
		entries++;
	return entries;
}

static void noise(const char *supervisor)
{
	char directory[64];
	snprintf(directory, sizeof directory, "/proc/%s/fd", supervisor);
	int files[2], socket_number = hello(files), before = count(directory), pipes[2];
	int fault = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (pipe(pipes) != 0)
		fail("pipe");
	for (int round = 0; round < 1000; round++) {
		struct packet keep = { .kind = KEEP };
		int both[2] = { round % 2 ? pipes[0] : fault, fault };
		if (give(socket_number, &keep, sizeof keep, both, 1 + round % 2) < 0)
			fail("keep");
	}
	for (int round = 0; round < 100000; round++) {
		struct packet say = { .kind = round % 100 == 7 ? UNMANAGED : SAY };
		say.text_len = snprintf(say.text, sizeof say.text, "\033]0;title\007\033[2J%c[31m line %d\r\nuzswap: forged", 0x9b, round);
		if (give(socket_number, &say, sizeof say, NULL, 0) < 0) {
			close(socket_number);
			socket_number = hello(files);
		}
	}
	/* Everything before this has been read then. */
	ask(socket_number, OPEN, 7);
	printf("descriptors %d more\n", count(directory) - before);
}

/* A connection with bytes that are never read: the last to close it waits for an hour. */
static int lingering(void)
{
	static int listener = -1;
	static struct sockaddr_in address = { .sin_family = AF_INET };
	static const int small = 4096;
	socklen_t len = sizeof address;
	if (listener < 0) {
		listener = socket(AF_INET, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
		address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		if (bind(listener, (void *)&address, len) != 0 || listen(listener, 64) != 0 ||
		    getsockname(listener, (void *)&address, &len) != 0)
			fail("listen");
	}
	int writer = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(writer, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
	if (connect(writer, (void *)&address, len) != 0 || accept(listener, NULL, NULL) < 0)
		fail("no connection to this machine");
	static char zeroes[1 << 16];
	while (send(writer, zeroes, sizeof zeroes, MSG_DONTWAIT) > 0)
		;
	struct linger hour = { 1, 3600 };
	if (setsockopt(writer, SOL_SOCKET, SO_LINGER, &hour, sizeof hour) != 0)
		fail("linger");
	return writer;
}

static void *closed(void *number)
{
	close((int)(intptr_t)number);
	return NULL;
}

/* The last to close it waits, and that may be this process. */
static void close_aside(int number)
{
	pthread_t thread;
	if (pthread_create(&thread, NULL, closed, (void *)(intptr_t)number) != 0)
		fail("thread");
	pthread_detach(thread);
}

static void linger(const char *supervisor)
{
	const char *name = address_of(supervisor);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Some are closed before anything is sent. */
	for (int round = 0, sent = 0; round < 100 || sent == 0; round++) {
		int writer = lingering(), number = connect_to(name);
		sent += number >= 0 && give(number, "x", 1, &writer, 1) == 1;
		close_aside(writer), close(number);
	}
	puts("sent");
	fflush(stdout);
	pause();
}

static void hold(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int round = 0; round < 4; round++) {
		int files[2], socket_number = hello(files), fault = syscall(SYS_userfaultfd, O_CLOEXEC);
		struct uffdio_api features = { .api = UFFD_API };
		if (fault < 0 || ioctl(fault, UFFDIO_API, &features) != 0)
			fail("userfaultfd");
		struct packet keep = { .kind = KEEP }, agree = { .kind = AGREE }, say = { .kind = SAY };
		int writers[2] = { lingering(), lingering() };
		if (give(socket_number, &keep, sizeof keep, &fault, 1) < 0 || give(socket_number, &keep, sizeof keep, writers, 1) < 0 ||
		    give(socket_number, &agree, sizeof agree, writers + 1, 1) < 0 || give(socket_number, &say, sizeof say, writers, 2) < 0)
			fail("give");
		close_aside(writers[0]), close_aside(writers[1]), close(fault);
		/* Read in order: all that came before was read, too. */
		int result[2];
		struct packet packet;
		if (get(socket_number, &packet, sizeof packet, result) <= 0)
			fail("no reply");
		int many[16];
		for (int at = 0; at < 16; at++)
			many[at] = lingering();
		give(socket_number, &say, sizeof say, many, 16);
		for (int at = 0; at < 16; at++)
			close_aside(many[at]);
		close(socket_number);
	}
	puts("held");
	fflush(stdout);
	pause();
}

static void forget(int both[2])
{
	close(both[0]), close(both[1]);
}

static int pair(int type, int ends[2])
{
	if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0)
		fail("socketpair");
	return ends[0];
}

/* Takes without a place, with any cookie. Every other time it sends too many and does not wait. */
static void take(int round)
{
	struct packet packet = { .kind = TAKE, .token = round % 4 == 0 ? any() : any() % 100000 };
	int number = connect_to(getenv("UZSWAP_SOCKET")), descriptors[2] = { -1, -1 };
	if (number < 0)
		fail("connect");
	for (int time = 0; time < (round % 2 ? 1 : 70) && give(number, &packet, sizeof packet, NULL, 0) > 0; time++)
		;
	if (round % 2 && get(number, &packet, sizeof packet, descriptors) < 0)
		fail("no answer");
	/* What another user's process says that it offers to others, it offers to itself. */
	struct ucred maker = { 0 };
	socklen_t len = sizeof maker;
	if (descriptors[0] >= 0 && (getsockopt(descriptors[0], SOL_SOCKET, SO_PEERCRED, &maker, &len) != 0 || maker.pid != getpid()))
		fail("it took what is not its own");
	close(descriptors[0]), close(number);
}

static void offer(int program)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	int handle = syscall(SYS_pidfd_open, program, 0);
	if (handle < 0)
		fail("pidfd_open");
	/* After its agent. */
	usleep(200000);
	for (int round = 0;; round++) {
		int files[2], ends[2], result[2], end, agent = hello_for(handle, files);
		forget(files);
		struct packet packet = { .kind = OFFER, .token = any(), .number = any() };
		for (int time = 0; time < 200; time++) {
			static const int types[] = { SOCK_SEQPACKET, SOCK_STREAM, SOCK_DGRAM };
			packet.kind = OFFER;
			end = pair(types[time % 3], ends);
			int given = time % 7 == 0 ? agent : time % 7 == 1 ? handle : end;
			give(agent, &packet, sizeof packet, &given, time % 11 != 0);
			forget(ends);
		}
		/* The last one stays: the other process is to refuse it. */
		end = pair(SOCK_SEQPACKET, ends);
		give(agent, &packet, sizeof packet, &end, 1);
		take(round);
		/* Agents take nothing, and packets have one descriptor at most. */
		packet.kind = round % 3 == 1 ? TAKE : OFFER;
		int many[] = { ends[0], ends[1], handle };
		if (round % 3 != 0)
			give(agent, &packet, sizeof packet, many, round % 3 == 1 ? 0 : 3);
		if (round == 0)
			puts("offers"), fflush(stdout);
		/* Nothing may be offered without a place. */
		int strange = connect_to(getenv("UZSWAP_SOCKET"));
		packet.kind = OFFER;
		give(strange, &packet, sizeof packet, ends, 1);
		int got = get(strange, &packet, sizeof packet, result);
		if (got > 0 || got < 0 && errno != ECONNRESET)
			fail("an offer of none");
		close(strange);
		if (round % 8 == 7)
			usleep(1000);
		/* Up to fourteen connections at a time, with what they offered. */
		static int before[14];
		if (before[round % 14] > 0)
			close(before[round % 14]);
		before[round % 14] = agent;
		forget(ends);
	}
}

static void own(const char *supervisor)
{
	char directory[64];
	snprintf(directory, sizeof directory, "/proc/%s/fd", supervisor);
	/* The other processes of the script have connected by then. */
	sleep(1);
	int before = count(directory);
	pid_t child = fork();
	for (int round = 0; child == 0 && round < 14; round++) {
		int files[2], ends[2], agent = hello(files), offered = agent;
		struct packet packet = { .kind = OFFER };
		if (round % 2) {
			/* In transit in what is offered. */
			offered = pair(SOCK_SEQPACKET, ends);
			give(ends[1], "x", 1, &agent, 1);
		}
		if (give(agent, &packet, sizeof packet, &offered, 1) < 0 || ask(agent, OPEN, 7) >= 0)
			fail("offer");
	}
	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	int more = 0;
	for (int look = 0; look < 1000 && (more = count(directory) - before) > 4; look++)
		usleep(10000);
	printf("descriptors %d more\n", more);
}

int main(int count, char **words)
{
	const char *mode = count > 1 ? words[1] : "";
	seed ^= getpid() * 2654435761u;
	if (strcmp(mode, "outside") == 0)
		outside(words[2], atoi(words[3]));
	else if (strcmp(mode, "join") == 0)
		join();
	else if (strcmp(mode, "garbage") == 0)
		garbage();
	else if (strcmp(mode, "noise") == 0)
		noise(words[2]);
	else if (strcmp(mode, "linger") == 0)
		linger(words[2]);
	else if (strcmp(mode, "hold") == 0)
		hold();
	else if (strcmp(mode, "offer") == 0)
		offer(atoi(words[2]));
	else if (strcmp(mode, "own") == 0)
		own(words[2]);
	else
		return 2;
	return 0;
}
