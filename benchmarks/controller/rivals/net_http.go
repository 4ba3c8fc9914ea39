// A session proxy on Go's net/http: what most people would write first. Starts go to the worker with most free
// slots and are remembered; everything else of a session goes where it began. With -grpc the way to the worker is a
// unary grpc-go call.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"math/rand"
	"net"
	"net/http"
	"strconv"
	"sync"

	"google.golang.org/grpc"
)

type worker struct {
	address  string
	capacity int
	taken    int
}

type proxy struct {
	mutex    sync.RWMutex
	workers  map[string][]*worker
	sessions map[string]*worker
	client   *http.Client
	stream   *grpc.ClientConn
}

func (p *proxy) heartbeat(w http.ResponseWriter, r *http.Request) {
	var beat struct {
		Name        string
		Address     string
		Concurrency int
	}
	if json.NewDecoder(r.Body).Decode(&beat) != nil {
		http.Error(w, `{"message":"no heartbeat"}`, 400)
		return
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, known := range p.workers[beat.Name] {
		if known.address == beat.Address {
			known.capacity = beat.Concurrency
			w.Write([]byte("null"))
			return
		}
	}
	p.workers[beat.Name] = append(p.workers[beat.Name], &worker{beat.Address, beat.Concurrency, 0})
	w.Write([]byte("null"))
}

func (p *proxy) place(task string) (string, *worker) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var best *worker
	for _, each := range p.workers[task] {
		if best == nil || each.capacity-each.taken > best.capacity-best.taken {
			best = each
		}
	}
	if best == nil || best.taken >= best.capacity {
		return "", nil
	}
	best.taken++
	id := strconv.FormatInt(rand.Int63n(1<<53), 10)
	p.sessions[id] = best
	return id, best
}

func (p *proxy) end(id string) {
	p.mutex.Lock()
	if held := p.sessions[id]; held != nil {
		held.taken--
		delete(p.sessions, id)
	}
	p.mutex.Unlock()
}

func (p *proxy) forward(w http.ResponseWriter, r *http.Request, to *worker, route, id string, body io.Reader, length int64) {
	if p.stream != nil {
		data, err := io.ReadAll(body)
		if err != nil {
			http.Error(w, `{"message":"no body"}`, 400)
			return
		}
		var reply raw
		if err := p.stream.Invoke(r.Context(), "/bench.Worker/Ask", &raw{data}, &reply, grpc.ForceCodec(rawCodec{})); err != nil {
			http.Error(w, `{"message":"the worker failed"}`, 500)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header()["session_id"] = []string{id}
		w.Header().Set("Content-Length", strconv.Itoa(len(reply.data)))
		w.Write(reply.data)
		return
	}
	request, _ := http.NewRequestWithContext(context.Background(), "POST", to.address+"/"+route, body)
	request.ContentLength = length
	request.Header.Set("Content-Type", "application/json")
	request.Header["session_id"] = []string{id}
	if requestID := r.Header.Get("X-Request-Id"); requestID != "" {
		request.Header.Set("X-Request-Id", requestID)
	}
	reply, err := p.client.Do(request)
	if err != nil {
		http.Error(w, `{"message":"the worker failed"}`, 500)
		return
	}
	defer reply.Body.Close()
	if reply.Header.Get("X-Session-Finish") == "1" {
		p.end(id)
	}
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header["session_id"] = []string{id}
	if reply.ContentLength >= 0 {
		header.Set("Content-Length", strconv.FormatInt(reply.ContentLength, 10))
	}
	w.WriteHeader(reply.StatusCode)
	io.Copy(w, reply.Body)
}

func (p *proxy) start(w http.ResponseWriter, r *http.Request) {
	var request struct{ Name string }
	body, err := io.ReadAll(r.Body)
	if err != nil || json.Unmarshal(body, &request) != nil {
		http.Error(w, `{"message":"no start"}`, 400)
		return
	}
	id, chosen := p.place(request.Name)
	if chosen == nil {
		http.Error(w, `{"message":"no capacity"}`, 503)
		return
	}
	p.forward(w, r, chosen, "start_sample", id, bytes.NewReader(body), int64(len(body)))
}

func (p *proxy) session(route string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var id string
		if values := r.Header["Session_id"]; len(values) > 0 {
			id = values[0]
		}
		p.mutex.RLock()
		held := p.sessions[id]
		p.mutex.RUnlock()
		if held == nil {
			http.Error(w, `{"message":"unknown session"}`, 400)
			return
		}
		p.forward(w, r, held, route, id, r.Body, r.ContentLength)
	}
}

type raw struct{ data []byte }
type rawCodec struct{}

func (rawCodec) Marshal(v interface{}) ([]byte, error)      { return v.(*raw).data, nil }
func (rawCodec) Unmarshal(data []byte, v interface{}) error { v.(*raw).data = data; return nil }
func (rawCodec) Name() string                               { return "raw" }

func main() {
	port := flag.Int("port", 0, "port to listen on")
	target := flag.String("grpc", "", "host:port of a worker to ask over grpc-go")
	flag.Parse()
	transport := &http.Transport{MaxIdleConns: 0, MaxIdleConnsPerHost: 1 << 20, DisableCompression: true}
	p := &proxy{workers: map[string][]*worker{}, sessions: map[string]*worker{}, client: &http.Client{Transport: transport}}
	if *target != "" {
		connection, err := grpc.Dial(*target, grpc.WithInsecure())
		if err != nil {
			log.Fatal(err)
		}
		p.stream = connection
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/receive_heartbeat", p.heartbeat)
	mux.HandleFunc("/api/start_sample", p.start)
	mux.HandleFunc("/api/interact", p.session("interact"))
	listener, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(*port))
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.Serve(listener, mux))
}
