// Pages that are read again by goroutines, by children of exec, and by children of a bare clone().
package main

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

const (
	pages = 96 << 20 / 4096
	words = 512
)

func word(page, index int) uint64 {
	noise := uint64(page+1) * 0x9e3779b97f4a7c15
	if index%4 == 1 {
		return noise * uint64(index+1)
	}
	return 0x00007f0012340000 + noise>>48
}

func right(memory []uint64, from, to int) bool {
	for page := from; page < to; page++ {
		for index := 0; index < words; index += 7 {
			if memory[page*words+index] != word(page, index) {
				return false
			}
		}
	}
	return true
}

// The child of a bare clone() has one thread and no scheduler: it reads, and ends by a system call.
//
//go:norace
//go:nosplit
func child(memory []uint64) {
	for page := 0; page < pages; page += 16 {
		if memory[page*words+1] != uint64(page+1)*0x9e3779b97f4a7c15*2 {
			syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 1, 0, 0)
		}
	}
	syscall.RawSyscall(syscall.SYS_EXIT_GROUP, 0, 0, 0)
}

func main() {
	memory := make([]uint64, pages*words)
	for page := 0; page < pages; page++ {
		for index := 0; index < words; index++ {
			memory[page*words+index] = word(page, index)
		}
	}
	var wait sync.WaitGroup
	for part := 0; part < 4; part++ {
		wait.Add(1)
		go func(part int) {
			defer wait.Done()
			fmt.Fprintln(os.Stderr, part)
			if !right(memory, part*pages/4, (part+1)*pages/4) {
				fmt.Println("wrong")
			}
			for turn := 0; turn < 5; turn++ {
				if output, err := exec.Command("echo", "child").Output(); err != nil || string(output) != "child\n" {
					fmt.Println("exec:", err)
				}
			}
		}(part)
	}
	wait.Wait()
	for turn := 0; turn < 3; turn++ {
		pid, _, failed := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
		if failed != 0 {
			fmt.Println("clone:", failed)
			os.Exit(1)
		}
		if pid == 0 {
			child(memory)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(int(pid), &status, 0, nil); err != nil || status != 0 {
			fmt.Println("the child:", err, status)
		}
	}
	fmt.Println(right(memory, 0, pages))
}
