package webui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/labstack/echo/v4"
	"github.com/labstack/echo/v4/middleware"
	"github.com/temporalio/ui-server/v2/server/api"
	"github.com/temporalio/ui-server/v2/server/auth"
	uiconfig "github.com/temporalio/ui-server/v2/server/config"
	"github.com/temporalio/ui-server/v2/server/cors"
	"github.com/temporalio/ui-server/v2/server/csrf"
	"github.com/temporalio/ui-server/v2/server/headers"
	"github.com/temporalio/ui-server/v2/server/route"
	"github.com/temporalio/ui-server/v2/ui"
)

// stopTimeout is how long Stop waits for requests to end by themselves.
const stopTimeout = 2 * time.Second

// callerType is a header that the UI sends along with its requests.
const callerType = "Caller-Type"

// Options says where the UI listens and which server it shows.
type Options struct {
	// IP is the loopback address to listen on; "" is 127.0.0.1.
	IP string
	// Port to listen on; 0 picks a free one.
	Port int
	// TemporalAddress is host:port of the Temporal frontend. Required.
	TemporalAddress string
	// DefaultNamespace is what the UI opens with; "" is "default".
	DefaultNamespace string
	// Log gets the UI server's error messages; nil drops them.
	Log io.Writer
}

// UI is a running web UI. Safe for concurrent use.
type UI struct {
	url    string
	server *http.Server

	stopOnce sync.Once
	stopErr  error
}

// Start serves the UI and returns once it accepts connections. The error for a
// taken port is one line and wraps [syscall.EADDRINUSE]. ctx bounds the start only.
func Start(ctx context.Context, o Options) (*UI, error) {
	if o.IP == "" {
		o.IP = "127.0.0.1"
	}
	if o.DefaultNamespace == "" {
		o.DefaultNamespace = "default"
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	l, err := listen(ctx, o.IP, o.Port)
	if err != nil {
		return nil, err
	}
	handler, err := newHandler(o)
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("web UI: %w", err)
	}
	u := &UI{
		url: "http://" + l.Addr().String(),
		server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: 10 * time.Second,
			ErrorLog:          log.New(o.Log, "web UI: ", 0),
		},
	}
	go u.server.Serve(l) // returns when Stop closes the server
	return u, nil
}

// URL is where the UI is, such as http://127.0.0.1:8233.
func (u *UI) URL() string { return u.url }

// Stop lets requests end for up to 2 s, then closes their connections. Further
// calls return what the first returned.
func (u *UI) Stop() error {
	u.stopOnce.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if u.server.Shutdown(ctx) != nil {
			u.stopErr = u.server.Close()
		}
	})
	return u.stopErr
}

func listen(ctx context.Context, ip string, port int) (net.Listener, error) {
	if parsed := net.ParseIP(ip); parsed == nil || !parsed.IsLoopback() {
		return nil, fmt.Errorf("the web UI can't listen on %q; it has no authentication, so the address must be a loopback one such as 127.0.0.1", ip)
	}
	if port < 0 || port > 65535 {
		return nil, fmt.Errorf("port %d: it may be 0 to 65535", port)
	}
	addr := net.JoinHostPort(ip, strconv.Itoa(port))
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, portTaken{addr}
	}
	if err != nil {
		return nil, fmt.Errorf("can't listen on %s: %w", addr, err)
	}
	return l, nil
}

// newHandler is ui-server's server.NewServer without its listener, its logger and its panics.
func newHandler(o Options) (http.Handler, error) {
	provider, err := uiconfig.NewConfigProviderWithRefresh(config(o))
	if err != nil {
		return nil, err
	}
	files, err := ui.Assets()
	if err != nil {
		return nil, err
	}
	files, err = fs.Sub(files, "local") // beside "cloud"
	if err != nil {
		return nil, err
	}

	e := echo.New()
	e.Logger.SetOutput(o.Log)
	e.Use(middleware.Recover())
	e.Use(middleware.Gzip())
	e.Use(cors.CORSMiddleware(cors.CORSConfig{
		AllowHeaders: []string{
			echo.HeaderOrigin, echo.HeaderContentType, echo.HeaderAccept,
			echo.HeaderXCSRFToken, echo.HeaderAuthorization, auth.AuthorizationExtrasHeader, callerType,
		},
		AllowCredentials: true,
		ConfigProvider:   provider,
	}))
	e.Use(middleware.Secure())
	e.Use(csrf.EnsureTokenCookie(false)) // false: over plain HTTP a secure cookie would not come back
	e.Use(middleware.CSRFWithConfig(csrf.MiddlewareConfig(provider, false)))
	route.SetHealthRoute(e)
	forward := headers.WithForwardHeaders([]string{auth.AuthorizationExtrasHeader, callerType})
	if err := route.SetAPIRoutes(e, provider, []api.Middleware{forward}); err != nil {
		return nil, err
	}
	if err := route.SetUIRoutes(e, "", files, provider); err != nil {
		return nil, err
	}
	route.SetRenderRoute(e, "/")
	return e, nil
}

func config(o Options) *uiconfig.Config {
	return &uiconfig.Config{
		TemporalGRPCAddress: o.TemporalAddress,
		Host:                o.IP,
		Port:                o.Port,
		EnableUI:            true,
		HideLogs:            true,
		DefaultNamespace:    o.DefaultNamespace,
		CORS:                uiconfig.CORS{CookieInsecure: true},
		DisableNewsFetch:    true,
		NotifyOnNewVersion:  false,
	}
}

// portTaken is a refused bind that a person can act on.
type portTaken struct{ addr string }

func (e portTaken) Error() string {
	return fmt.Sprintf("port %s is taken; choose another with --ui-port or 0 for a free one", e.addr)
}

func (portTaken) Unwrap() error { return syscall.EADDRINUSE }
