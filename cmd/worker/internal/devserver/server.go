package devserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/server/common/authorization"
	serverconfig "go.temporal.io/server/common/config"
	"go.temporal.io/server/schema/sqlite"
	"go.temporal.io/server/temporal"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	stopTimeout   = 20 * time.Second // of Stop: all four services
	readyInterval = 5 * time.Millisecond
	portAttempts  = 3 // starts, where a port chosen as free was taken meanwhile
)

// Options says where a server listens and where it keeps its data.
type Options struct {
	// IP is the loopback address to listen on; "" is 127.0.0.1. Any other kind of
	// address is refused, as the server asks nobody who they are.
	IP string
	// Port of the frontend; 0 picks a free one.
	Port int
	// DBFile is the SQLite file, made if it doesn't exist (its directory must). "" keeps
	// everything in memory, gone when the process ends.
	DBFile string
	// Namespaces exist once Start returns; those already in the file stay as they
	// are. None means "default". Retention is one day.
	Namespaces []string
	// Log gets the server's messages of level warning and above, one line each; nil
	// drops them. It is written to by several goroutines, one line at a time.
	Log io.Writer
	// DefaultDynamicConfig leaves the dynamic configuration as Temporal ships it,
	// except that no version check is sent. A yardstick for benchmarks.
	DefaultDynamicConfig bool
}

// Server is a running Temporal server. Safe for concurrent use.
type Server struct {
	hostPort string
	internal temporal.Server
	log      *serverLog
	db       *database // nil in memory

	stopOnce sync.Once
	stopErr  error
}

// Start starts a server and returns once it answers requests in every namespace.
// ctx bounds the start only: when it ends first, whatever was started is stopped in
// the background and ctx's error is returned. Errors are one line each.
func Start(ctx context.Context, o Options) (*Server, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	type result struct {
		s   *Server
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := start(ctx, o)
		done <- result{s, err}
	}()
	select {
	case r := <-done:
		return r.s, r.err
	case <-ctx.Done():
		go func() {
			if r := <-done; r.s != nil {
				r.s.Stop()
			}
		}()
		return nil, fmt.Errorf("the Temporal server didn't start in time: %w", context.Cause(ctx))
	}
}

func (o Options) withDefaults() (Options, error) {
	if o.IP == "" {
		o.IP = "127.0.0.1"
	}
	if ip := net.ParseIP(o.IP); ip == nil || !ip.IsLoopback() {
		return o, fmt.Errorf("the Temporal server can't listen on %q; it has no authentication, so the address must be a loopback one such as 127.0.0.1", o.IP)
	}
	if o.Port < 0 || o.Port > 65535 {
		return o, fmt.Errorf("port %d: it may be 0 to 65535", o.Port)
	}
	if len(o.Namespaces) == 0 {
		o.Namespaces = []string{"default"}
	}
	if slices.Contains(o.Namespaces, "") {
		return o, errors.New("a namespace needs a name")
	}
	return o, nil
}

// collectGarbageLess lets the heap grow to five times of what is in use, unless the
// environment says how far: the server makes much garbage and keeps little, and with
// Go's default an update took a fifth longer.
var collectGarbageLess = sync.OnceFunc(func() {
	if _, set := os.LookupEnv("GOGC"); !set {
		debug.SetGCPercent(400)
	}
})

func start(ctx context.Context, o Options) (*Server, error) {
	collectGarbageLess()
	// First, as it is the likeliest fault and nothing has been touched yet.
	ports, err := reservePorts(o.IP, o.Port)
	if err != nil {
		return nil, err
	}
	defer func() { ports.free() }() // a closure: ports changes below
	var db *database
	if o.DBFile != "" {
		if db, err = openDatabase(ctx, o.DBFile); err != nil {
			return nil, err
		}
	}
	store := storeConfig(db)
	if err := createNamespaces(store, o.Namespaces); err != nil {
		db.close()
		return nil, fmt.Errorf("namespaces: %w", err)
	}
	for attempt := 1; ; attempt++ {
		s, err := boot(ctx, o, ports, store, db)
		if err == nil {
			return s, nil
		}
		if errors.Is(err, errListen) && attempt < portAttempts {
			// Between free and the server's own bind somebody else was faster.
			if again, err := reservePorts(o.IP, o.Port); err == nil {
				ports = again
				continue
			}
		}
		db.close()
		return nil, fmt.Errorf("the Temporal server didn't start: %w", err)
	}
}

// createNamespaces adds the namespaces that aren't there yet, before the server
// reads them: registering them through its API takes seconds to show everywhere.
func createNamespaces(store *serverconfig.SQL, names []string) error {
	var configs []*sqlite.NamespaceConfig
	for _, name := range names {
		c, err := sqlite.NewNamespaceConfig(clusterName, name, false, nil)
		if err != nil {
			return fmt.Errorf("namespace %s: %w", name, err)
		}
		configs = append(configs, c)
	}
	return sqlite.CreateNamespaces(store, configs...)
}

// boot starts the services on the given ports and waits until they answer.
func boot(ctx context.Context, o Options, ports *ports, store *serverconfig.SQL, db *database) (*Server, error) {
	s := &Server{hostPort: ports.frontend(), log: newServerLog(o.Log), db: db}
	err := s.log.guard(func() error {
		traced := sync.OnceFunc(untraced())
		defer traced() // also where a panic ends this
		ports.free()   // as late as it can be: NewServer opens them
		internal, err := temporal.NewServer(
			temporal.WithConfig(serverConfig(o.IP, ports, store)),
			temporal.ForServices(temporal.DefaultServices),
			temporal.WithStaticHosts(ports.hosts()),
			temporal.WithLogger(s.log),
			temporal.WithDynamicConfigClient(dynamicConfig(o.DefaultDynamicConfig)),
			temporal.WithAuthorizer(authorization.NewNoopAuthorizer()),
			temporal.WithClaimMapper(func(*serverconfig.Config) authorization.ClaimMapper {
				return authorization.NewNoopClaimMapper()
			}),
		)
		traced()
		if err != nil {
			return err
		}
		s.internal = internal
		return internal.Start()
	})
	if err == nil {
		err = s.waitUntilReady(ctx, o.Namespaces)
	}
	if err != nil {
		if s.internal != nil {
			s.Stop() // so that nobody gets the file while parts of it still run
		}
		return nil, err
	}
	return s, nil
}

// untraced takes OTEL_TRACES_EXPORTER away until the returned function is called, for
// one server at a time. It is meant for the workers: the server would export spans of
// its own, knows few of the values, and can't be made with the others.
func untraced() (restore func()) {
	const name = "OTEL_TRACES_EXPORTER"
	environment.Lock()
	value, set := os.LookupEnv(name)
	if !set {
		return environment.Unlock
	}
	_ = os.Unsetenv(name) // fails for no name
	return func() {
		_ = os.Setenv(name, value)
		environment.Unlock()
	}
}

// environment is changed by one server at a time.
var environment sync.Mutex

// waitUntilReady asks each namespace for a workflow that doesn't exist. The answer
// NotFound has gone through frontend, namespace cache, history and database.
func (s *Server) waitUntilReady(ctx context.Context, namespaces []string) error {
	conn, err := grpc.NewClient("passthrough:///"+s.hostPort, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	frontend := workflowservice.NewWorkflowServiceClient(conn)
	for _, namespace := range namespaces {
		for {
			call, cancel := context.WithTimeout(ctx, time.Second)
			_, err := frontend.DescribeWorkflowExecution(call, &workflowservice.DescribeWorkflowExecutionRequest{
				Namespace: namespace,
				Execution: &commonpb.WorkflowExecution{WorkflowId: "sluice-readiness"},
			}, grpc.WaitForReady(true))
			cancel()
			var notFound *serviceerror.NotFound
			if err == nil || errors.As(serviceerror.FromStatus(status.Convert(err)), &notFound) {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("namespace %s isn't ready: %w", namespace, err)
			case fatal := <-s.log.failed:
				s.log.fail(fatal) // Failed is told of it as well
				return fatal
			case <-time.After(readyInterval):
			}
		}
	}
	return nil
}

// HostPort is the frontend's address, such as 127.0.0.1:7233.
func (s *Server) HostPort() string { return s.hostPort }

// Failed delivers at most one error: what made the server unfit to go on, where
// Temporal would have ended the process. Stop is still to be called.
func (s *Server) Failed() <-chan error { return s.log.failed }

// Stop stops the services, worker first, folds the write-ahead log into the
// database file and gives the file free. It takes at most 20 s; a server that
// isn't down by then keeps its file locked until the process ends, and the error says
// so. Further calls return what the first returned.
func (s *Server) Stop() error {
	s.stopOnce.Do(func() {
		s.log.quiet.Store(true)
		done := make(chan error, 1)
		go func() { done <- s.log.guard(s.internal.Stop) }()
		timeout := time.NewTimer(stopTimeout)
		defer timeout.Stop()
		select {
		case s.stopErr = <-done:
			s.stopErr = errors.Join(s.stopErr, s.db.close())
		case <-timeout.C:
			s.stopErr = fmt.Errorf("the Temporal server at %s didn't stop within %v", s.hostPort, stopTimeout)
			if s.db != nil {
				s.db.keep()
				s.stopErr = fmt.Errorf("%w; %s stays locked until this process ends", s.stopErr, filepath.Base(s.db.file))
			}
		}
	})
	return s.stopErr
}
