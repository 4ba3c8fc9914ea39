// A native task worker that answers at once or after a time of thought, and costs as little as it can. With -grpc it
// answers unary grpc-go calls for net_http.go instead.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"log"
	"math/rand"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"google.golang.org/grpc"
)

var (
	mutex sync.Mutex
	turns = map[string]int{}
	last  = map[string][2]string{}
)

type raw struct{ data []byte }
type rawCodec struct{}

func (rawCodec) Marshal(v interface{}) ([]byte, error)      { return v.(*raw).data, nil }
func (rawCodec) Unmarshal(data []byte, v interface{}) error { v.(*raw).data = data; return nil }
func (rawCodec) Name() string                               { return "raw" }
func (rawCodec) String() string                             { return "raw" }

type asker interface{}

func ask(answer []byte) func(interface{}, grpc.ServerStream) error {
	return func(_ interface{}, stream grpc.ServerStream) error {
		var request raw
		if err := stream.RecvMsg(&request); err != nil {
			return err
		}
		return stream.SendMsg(&raw{answer})
	}
}

func main() {
	port := flag.Int("port", 0, "port to listen on")
	controllers := flag.String("controllers", "", "APIs to register with, by commas")
	capacity := flag.Int("capacity", 1000000, "sessions at most")
	numTurns := flag.Int("turns", 0, "exchanges of a session; 0: it never ends, and nothing is remembered")
	low := flag.Float64("low", 0, "least seconds an exchange takes")
	high := flag.Float64("high", 0, "most seconds an exchange takes")
	useGrpc := flag.Bool("grpc", false, "answer grpc-go calls")
	flag.Parse()
	text := strings.Repeat("x", 1850)
	said := []byte(`{"messages":[{"role":"user","content":"` + text + `"}],"tools":null,"status":"running","finish":false,"reward":0.0,"metrics":{}}`)
	done := bytes.Replace(bytes.Replace(said, []byte(`"running"`), []byte(`"completed"`), 1), []byte("false"), []byte("true"), 1)
	if *useGrpc {
		listener, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(*port))
		if err != nil {
			log.Fatal(err)
		}
		server := grpc.NewServer(grpc.CustomCodec(rawCodec{}))
		server.RegisterService(&grpc.ServiceDesc{
			ServiceName: "bench.Worker",
			HandlerType: (*asker)(nil),
			Streams:     []grpc.StreamDesc{{StreamName: "Ask", Handler: ask(said), ServerStreams: false, ClientStreams: false}},
		}, struct{}{})
		log.Fatal(server.Serve(listener))
	}
	address := fmt.Sprintf("http://127.0.0.1:%d/api", *port)
	beat := fmt.Sprintf(`{"name":"bench","address":"%s","concurrency":%d,"indices":[0],"native":true,"instance":"%d"}`, address, *capacity, rand.Int63())
	for _, controller := range strings.Split(*controllers, ",") {
		if controller == "" {
			continue
		}
		go func(url string) {
			for {
				reply, err := http.Post(url+"/receive_heartbeat", "application/json", strings.NewReader(beat))
				if err == nil {
					reply.Body.Close()
				}
				time.Sleep(time.Second)
			}
		}(controller)
	}
	handle := func(ctx *fasthttp.RequestCtx) {
		id := string(ctx.Request.Header.Peek("session_id"))
		if len(id) == 0 {
			id = string(ctx.Request.Header.Peek("Session_id"))
		}
		ctx.SetContentType("application/json")
		path := string(ctx.Path())
		requestID := string(ctx.Request.Header.Peek("X-Request-Id"))
		if strings.HasSuffix(path, "/get_sessions") {
			mutex.Lock()
			listed := make([]string, 0, len(turns))
			for id := range turns {
				listed = append(listed, `"`+id+`":0`)
			}
			mutex.Unlock()
			ctx.SetBodyString("{" + strings.Join(listed, ",") + "}")
			return
		}
		if strings.HasSuffix(path, "/cancel_with_notice") {
			ctx.SetBodyString("null")
			return
		}
		if *numTurns > 0 && requestID != "" {
			mutex.Lock()
			kept, again := last[id]
			mutex.Unlock()
			if again && kept[0] == requestID {
				ctx.Response.Header.Set("X-Session-Finish", kept[1])
				if kept[1] == "1" {
					ctx.SetBody(done)
				} else {
					ctx.SetBody(said)
				}
				return
			}
		}
		if strings.HasSuffix(path, "/interact") && *high > 0 {
			time.Sleep(time.Duration((*low + rand.Float64()*(*high-*low)) * float64(time.Second)))
		}
		finish := "0"
		if *numTurns > 0 {
			mutex.Lock()
			if strings.HasSuffix(path, "/start_sample") {
				turns[id] = 0
			} else if turn, known := turns[id]; !known {
				mutex.Unlock()
				ctx.Error(`{"detail":"unknown session"}`, 400)
				return
			} else if turn+1 >= *numTurns {
				finish = "1"
				delete(turns, id)
			} else {
				turns[id] = turn + 1
			}
			if requestID != "" {
				last[id] = [2]string{requestID, finish}
			}
			mutex.Unlock()
		}
		ctx.Response.Header.Set("X-Session-Finish", finish)
		if finish == "1" {
			ctx.SetBody(done)
		} else {
			ctx.SetBody(said)
		}
	}
	server := fasthttp.Server{Handler: handle, ReadBufferSize: 8192, Concurrency: 1 << 20, NoDefaultServerHeader: true}
	log.Fatal(server.ListenAndServe("127.0.0.1:" + strconv.Itoa(*port)))
}
