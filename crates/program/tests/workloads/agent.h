/* The agent of a managed process, which is a process of its own. Include after defining _GNU_SOURCE. */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* The process named uzswap that has this memory; 0 if there is none. */
static pid_t find_agent(void) {
    static volatile uint64_t own;
    pid_t found = 0;
    own = own * 2 + getpid() + 1;
    DIR *all = opendir("/proc");
    for (struct dirent *entry; all && !found && (entry = readdir(all));) {
        char path[300], name[16] = "";
        snprintf(path, sizeof path, "/proc/%s/comm", entry->d_name);
        int file = open(path, O_RDONLY);
        if (file < 0) continue;
        ssize_t len = read(file, name, sizeof name - 1);
        close(file);
        if (len < 0 || strcmp(name, "uzswap\n")) continue;
        uint64_t theirs = 0;
        struct iovec local = {&theirs, 8}, remote = {(void *)&own, 8};
        pid_t pid = atoi(entry->d_name);
        if (process_vm_readv(pid, &local, 1, &remote, 1, 0) == 8 && theirs == own) found = pid;
    }
    if (all) closedir(all);
    return found;
}

/* The tasks of this process and of its agent. */
static int find_tasks(pid_t *tasks, int most) {
    pid_t processes[] = {getpid(), find_agent()};
    int count = 0;
    for (int i = 0; i < 2; i++) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/task", processes[i]);
        DIR *all = processes[i] ? opendir(path) : NULL;
        for (struct dirent *task; all && count < most && (task = readdir(all));)
            if (atoi(task->d_name)) tasks[count++] = atoi(task->d_name);
        if (all) closedir(all);
    }
    return count;
}
