// The same session proxy on fasthttp.
package main

import (
	"encoding/json"
	"flag"
	"log"
	"math/rand"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
)

type worker struct {
	address  string
	capacity int
	taken    int
}

var (
	mutex    sync.RWMutex
	workers  = map[string][]*worker{}
	sessions = map[string]*worker{}
	client   = fasthttp.Client{MaxConnsPerHost: 1 << 20, ReadBufferSize: 8192, MaxIdleConnDuration: time.Minute}
)

func heartbeat(ctx *fasthttp.RequestCtx) {
	var beat struct {
		Name        string
		Address     string
		Concurrency int
	}
	if json.Unmarshal(ctx.PostBody(), &beat) != nil {
		ctx.Error(`{"message":"no heartbeat"}`, 400)
		return
	}
	mutex.Lock()
	defer mutex.Unlock()
	ctx.SetBodyString("null")
	for _, known := range workers[beat.Name] {
		if known.address == beat.Address {
			return
		}
	}
	workers[beat.Name] = append(workers[beat.Name], &worker{beat.Address, beat.Concurrency, 0})
}

func place(task string) (string, *worker) {
	mutex.Lock()
	defer mutex.Unlock()
	var best *worker
	for _, each := range workers[task] {
		if best == nil || each.capacity-each.taken > best.capacity-best.taken {
			best = each
		}
	}
	if best == nil || best.taken >= best.capacity {
		return "", nil
	}
	best.taken++
	id := strconv.FormatInt(rand.Int63n(1<<53), 10)
	sessions[id] = best
	return id, best
}

func forward(ctx *fasthttp.RequestCtx, to *worker, route, id string) {
	request, reply := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(request)
	defer fasthttp.ReleaseResponse(reply)
	request.Header.DisableNormalizing()
	request.SetRequestURI(to.address + "/" + route)
	request.Header.SetMethod("POST")
	request.Header.SetContentType("application/json")
	request.Header.Set("session_id", id)
	if requestID := ctx.Request.Header.Peek("X-Request-Id"); len(requestID) > 0 {
		request.Header.SetBytesV("X-Request-Id", requestID)
	}
	request.SetBodyRaw(ctx.PostBody())
	if client.Do(request, reply) != nil {
		ctx.Error(`{"message":"the worker failed"}`, 500)
		return
	}
	if string(reply.Header.Peek("X-Session-Finish")) == "1" {
		mutex.Lock()
		to.taken--
		delete(sessions, id)
		mutex.Unlock()
	}
	ctx.Response.Header.DisableNormalizing()
	ctx.Response.Header.Set("session_id", id)
	ctx.SetContentType("application/json")
	ctx.SetStatusCode(reply.StatusCode())
	ctx.Response.SetBody(reply.Body())
}

func handle(ctx *fasthttp.RequestCtx) {
	switch path := string(ctx.Path()); path {
	case "/api/receive_heartbeat":
		heartbeat(ctx)
	case "/api/start_sample":
		var request struct{ Name string }
		if json.Unmarshal(ctx.PostBody(), &request) != nil {
			ctx.Error(`{"message":"no start"}`, 400)
			return
		}
		id, chosen := place(request.Name)
		if chosen == nil {
			ctx.Error(`{"message":"no capacity"}`, 503)
			return
		}
		forward(ctx, chosen, "start_sample", id)
	default:
		id := string(ctx.Request.Header.Peek("session_id"))
		mutex.RLock()
		held := sessions[id]
		mutex.RUnlock()
		if held == nil {
			ctx.Error(`{"message":"unknown session"}`, 400)
			return
		}
		forward(ctx, held, "interact", id)
	}
}

func main() {
	port := flag.Int("port", 0, "port to listen on")
	flag.Parse()
	server := fasthttp.Server{Handler: handle, ReadBufferSize: 8192, Concurrency: 1 << 20}
	log.Fatal(server.ListenAndServe("127.0.0.1:" + strconv.Itoa(*port)))
}
