// A map of slices, and a tree: a collector that marks beside the program.
package main

import "fmt"

type node struct {
	left, right *node
	key         int
}

func (n *node) insert(key int) *node {
	if n == nil {
		return &node{key: key}
	}
	if key < n.key {
		n.left = n.left.insert(key)
	} else {
		n.right = n.right.insert(key)
	}
	return n
}

func main() {
	const count = 300000
	table := map[string][]int{}
	var tree *node
	for n := 0; n < count; n++ {
		table[fmt.Sprint("key", n)] = []int{n, n * 2}
		tree = tree.insert(n * 7919 % count)
	}
	total := 0
	for n := 0; n < 3*count; n++ {
		total += table[fmt.Sprint("key", n*104729%count)][n%2]
	}
	for n := 0; n < count; n++ {
		at := tree
		for at != nil && at.key != n {
			if n < at.key {
				at = at.left
			} else {
				at = at.right
			}
		}
		total += at.key
	}
	fmt.Println(len(table), total)
}
