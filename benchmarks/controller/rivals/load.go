// Load: many kept connections, each playing one session after the other. Prints one JSON line.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

type tally struct {
	mutex     sync.Mutex
	starts    []float64
	exchanges []float64
	errors    map[string]int
	sessions  int
}

func (t *tally) add(start bool, seconds float64, problem string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if problem != "" {
		t.errors[problem]++
	} else if start {
		t.starts = append(t.starts, seconds)
	} else {
		t.exchanges = append(t.exchanges, seconds)
	}
}

type connection struct {
	socket net.Conn
	reader *bufio.Reader
}

// One request over the connection: status, session id of the answer, whether it was the last, what went wrong.
func (c *connection) post(host, route, session, id string, body []byte) (int, string, bool, error) {
	var head strings.Builder
	head.WriteString("POST /api/" + route + " HTTP/1.1\r\nHost: " + host + "\r\nContent-Type: application/json\r\n")
	if session != "" {
		head.WriteString("session_id: " + session + "\r\n")
	}
	head.WriteString("X-Request-Id: " + id + "\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n\r\n")
	if _, err := c.socket.Write(append([]byte(head.String()), body...)); err != nil {
		return 0, "", false, err
	}
	line, err := c.reader.ReadString('\n')
	if err != nil {
		return 0, "", false, err
	}
	status, _ := strconv.Atoi(strings.Fields(line)[1])
	length, found, last := 0, "", false
	for {
		line, err = c.reader.ReadString('\n')
		if err != nil {
			return 0, "", false, err
		}
		line = strings.TrimRight(line, "\r\n")
		if line == "" {
			break
		}
		name, value, _ := strings.Cut(line, ":")
		switch strings.ToLower(name) {
		case "content-length":
			length, _ = strconv.Atoi(strings.TrimSpace(value))
		case "session_id":
			found = strings.TrimSpace(value)
		}
	}
	answer := make([]byte, length)
	if _, err := io.ReadFull(c.reader, answer); err != nil {
		return 0, "", false, err
	}
	last = strings.Contains(string(answer), `"finish":true`) || strings.Contains(string(answer), `"finish": true`)
	return status, found, last, nil
}

// Plays until the program ends.
func play(host string, number, turns int, pause time.Duration, t *tally, ready *sync.WaitGroup, begin chan struct{}, direct bool) {
	socket, err := net.Dial("tcp", host)
	if err != nil {
		t.add(true, 0, "connect")
		ready.Done()
		return
	}
	defer socket.Close()
	c := &connection{socket, bufio.NewReaderSize(socket, 4096)}
	body := []byte(`{"messages":[{"role":"assistant","content":"` + strings.Repeat("y", 1900) + `"}]}`)
	session, turn, count := "", 0, 0
	ready.Done()
	<-begin
	if pause > 0 {
		time.Sleep(time.Duration(rand.Float64() * float64(pause)))
	}
	for {
		count++
		id := fmt.Sprintf("%d-%d-%d", os.Getpid(), number, count)
		began := time.Now()
		if session == "" {
			own := ""
			if direct {
				own = strconv.FormatInt(rand.Int63n(1<<53), 10)
			}
			status, found, _, err := c.post(host, "start_sample", own, id, []byte(`{"name":"bench","index":0}`))
			if err != nil {
				t.add(true, 0, "start: broken")
				return
			}
			if status != 200 {
				t.add(true, 0, "start: "+strconv.Itoa(status))
				time.Sleep(100 * time.Millisecond)
				continue
			}
			if direct {
				found = own
			}
			session, turn = found, 0
			t.add(true, time.Since(began).Seconds(), "")
			continue
		}
		status, _, last, err := c.post(host, "interact", session, id, body)
		if err != nil {
			t.add(false, 0, "interact: broken")
			return
		}
		if status != 200 {
			t.add(false, 0, "interact: "+strconv.Itoa(status))
			session = ""
			continue
		}
		t.add(false, time.Since(began).Seconds(), "")
		turn++
		if last || (turns > 0 && turn >= turns) {
			session = ""
			t.mutex.Lock()
			t.sessions++
			t.mutex.Unlock()
		}
	}
}

func quantile(sorted []float64, share float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[int(share*float64(len(sorted)-1))]
}

func main() {
	host := flag.String("host", "", "host:port")
	connections := flag.Int("connections", 64, "connections")
	turns := flag.Int("turns", 0, "exchanges of a session; 0: as many as the worker wants")
	seconds := flag.Float64("seconds", 5, "how long")
	spread := flag.Float64("spread", 0, "seconds over which sessions begin")
	direct := flag.Bool("direct", false, "the host is a worker")
	flag.Parse()
	t := &tally{errors: map[string]int{}}
	var ready sync.WaitGroup
	begin := make(chan struct{})
	ready.Add(*connections)
	for number := 0; number < *connections; number++ {
		if number%200 == 199 {
			time.Sleep(20 * time.Millisecond)
		}
		go play(*host, number, *turns, time.Duration(*spread*float64(time.Second)), t, &ready, begin, *direct)
	}
	ready.Wait()
	close(begin)
	began := time.Now()
	time.Sleep(time.Duration(*seconds * float64(time.Second)))
	t.mutex.Lock()
	wall := time.Since(began).Seconds()
	sort.Float64s(t.starts)
	sort.Float64s(t.exchanges)
	var usage syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	json.NewEncoder(os.Stdout).Encode(map[string]interface{}{
		"requests": len(t.starts) + len(t.exchanges), "sessions": t.sessions, "wall_s": wall, "errors": t.errors,
		"start_p50_s": quantile(t.starts, 0.5), "start_p99_s": quantile(t.starts, 0.99),
		"interact_p50_s": quantile(t.exchanges, 0.5), "interact_p99_s": quantile(t.exchanges, 0.99),
		"cpu_s": float64(usage.Utime.Sec+usage.Stime.Sec) + float64(usage.Utime.Usec+usage.Stime.Usec)/1e6,
	})
}
