package devserver

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
)

// ports are reserved addresses, one per service. They are kept open, so that neither
// this process nor another gets them, until free hands them to the server.
type ports struct {
	ip        string
	numbers   []int
	listeners []net.Listener
}

// reservePorts opens the frontend's port and a free one for each other service.
func reservePorts(ip string, frontend int) (*ports, error) {
	p := &ports{ip: ip}
	for i := range services {
		port := 0
		if i == 0 {
			port = frontend
		}
		l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(port)))
		if err != nil {
			p.free()
			return nil, portError(ip, port, err)
		}
		p.listeners = append(p.listeners, l)
		p.numbers = append(p.numbers, l.Addr().(*net.TCPAddr).Port)
	}
	return p, nil
}

// free closes the reservations; again does nothing.
func (p *ports) free() {
	for _, l := range p.listeners {
		l.Close()
	}
	p.listeners = nil
}

func portError(ip string, port int, err error) error {
	addr := net.JoinHostPort(ip, strconv.Itoa(port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return portTaken{addr}
	}
	return fmt.Errorf("can't listen on %s: %w", addr, err)
}

// portTaken is a refused bind that a person can act on.
type portTaken struct{ addr string }

func (e portTaken) Error() string {
	return fmt.Sprintf("port %s is taken; choose another with --port or 0 for a free one", e.addr)
}

func (portTaken) Unwrap() error { return syscall.EADDRINUSE }
