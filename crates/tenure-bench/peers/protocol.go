// The commands of tenure-bench: see src/peer/mod.rs.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Task is what one goroutine does again and again.
type Task struct {
	Acquire func() error
	Release func() error
}

type figures struct {
	ElapsedUs float64 `json:"elapsed_us"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	Max       float64 `json:"max_us"`
	Grants    []int   `json:"grants"`
	Total     int     `json:"total"`
	Error     *string `json:"error"`
}

// serve obeys until the pipe is closed. Tasks of a turn have a key each; those of a hot key have
// one key, and must exclude each other.
func serve(create func(key string) (Task, error)) {
	turns, hots := []Task{}, []Task{}
	grow := func(list []Task, count int, key func(int) string) ([]Task, error) {
		for len(list) < count {
			task, err := create(key(len(list)))
			if err != nil {
				return list, err
			}
			list = append(list, task)
		}
		return list, nil
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		number := func(place int) int {
			value, _ := strconv.Atoi(words[place])
			return value
		}
		var answer figures
		var err error
		tasks := number(2)
		if words[0] == "turn" {
			turns, err = grow(turns, tasks, func(n int) string { return fmt.Sprintf("go%d", n) })
			if err == nil {
				each := (number(1) + tasks - 1) / tasks
				answer, err = run(turns[:tasks], false, 0, func(done int, _ time.Time) bool { return done < each })
			}
		} else {
			hots, err = grow(hots, tasks, func(int) string { return "hot" })
			if err == nil {
				long := time.Duration(number(1)) * time.Millisecond
				hold := time.Duration(number(3)) * time.Millisecond
				answer, err = run(hots[:tasks], true, hold, func(_ int, start time.Time) bool {
					return time.Since(start) < long
				})
			}
		}
		if err != nil {
			text := err.Error()
			answer.Error = &text
		}
		line, _ := json.Marshal(answer)
		fmt.Println(string(line))
	}
}

// run lets each task go on while it may. In a turn the times are of whole cycles; on a hot key they
// are of the waits.
func run(tasks []Task, hot bool, hold time.Duration, goOn func(int, time.Time) bool) (figures, error) {
	var group sync.WaitGroup
	grants := make([]int, len(tasks))
	times := make([][]float64, len(tasks))
	errs := make([]error, len(tasks))
	start := time.Now()
	for n := range tasks {
		group.Add(1)
		go func() {
			defer group.Done()
			for goOn(grants[n], start) {
				began := time.Now()
				if errs[n] = tasks[n].Acquire(); errs[n] != nil {
					return
				}
				waited := time.Since(began)
				// A grant after the end, when others have stopped, says nothing about fairness.
				if goOn(grants[n], start) {
					grants[n]++
				}
				if hold > 0 {
					time.Sleep(hold)
				}
				if errs[n] = tasks[n].Release(); errs[n] != nil {
					return
				}
				if hot {
					times[n] = append(times[n], float64(waited.Nanoseconds())/1e3)
				} else {
					times[n] = append(times[n], float64(time.Since(began).Nanoseconds())/1e3)
				}
			}
		}()
	}
	group.Wait()
	answer := figures{ElapsedUs: float64(time.Since(start).Nanoseconds()) / 1e3, Grants: grants}
	all := []float64{}
	for n := range tasks {
		if errs[n] != nil {
			return answer, errs[n]
		}
		all = append(all, times[n]...)
	}
	sort.Float64s(all)
	answer.Total = len(all)
	if len(all) > 0 {
		last := len(all) - 1
		answer.P50, answer.P99, answer.Max = all[last*50/100], all[last*99/100], all[last]
	}
	return answer, nil
}
