package policy

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
)

// ErrAmbiguousGate: several gates stand on one endpoint and the caller chose
// none, or a name is that of several gates.
var ErrAmbiguousGate = errors.New("ambiguous gate")

// ErrUnknownGate: the caller chose a gate that the policy does not have.
var ErrUnknownGate = errors.New("unknown gate")

// site is the gates of one endpoint.
type site struct {
	path  string
	gates []sited
}

type sited struct {
	gate    *Gate
	id      string
	exclude []exclusion
}

type exclusion struct{ method, pattern string } // method "" is any

func (p *Policy) buildSites() {
	for _, g := range p.gates {
		e, err := parseEndpoint(g.Endpoint)
		if err != nil {
			continue // a fault, so this policy is refused
		}
		s := sited{gate: g, id: g.ID()}
		for _, x := range g.Exclude {
			method, pattern := splitExclude(x)
			s.exclude = append(s.exclude, exclusion{method, pattern})
		}
		sites := p.sites[e.authority]
		i := slices.IndexFunc(sites, func(s site) bool { return s.path == e.path })
		if i < 0 {
			i = len(sites)
			sites = append(sites, site{path: e.path})
		}
		sites[i].gates = append(sites[i].gates, s)
		p.sites[e.authority] = sites
	}
	for _, sites := range p.sites {
		slices.SortStableFunc(sites, byLongestPath)
	}
}

// Find is the gate of a request: that of the longest configured endpoint which
// is the URL's prefix on a segment boundary. nil and no error: the request is
// not gated, because no endpoint fits or because an exclude pattern does.
//
// name chooses among several gates on an endpoint, by name or by gate ID, and
// is looked for on every endpoint that fits, the longest first. Empty: the gate
// without a name, or the only one. A name that none of them has is
// [ErrUnknownGate]; so is, on a URL without a gate, a name that no gate of the
// policy has. Where a choice is needed and none was made the error is
// [ErrAmbiguousGate].
//
// method is the request's; empty is GET. Find allocates nothing for a URL in
// its usual spelling.
func (p *Policy) Find(method string, u *url.URL, name string) (*Gate, error) {
	if p == nil || len(p.gates) == 0 || u == nil {
		return nil, nil
	}
	fitting, requestPath := p.fitting(u)
	if name != "" {
		return p.findNamed(method, fitting, requestPath, name)
	}
	for _, s := range fitting {
		if !isBelow(requestPath, s.path) {
			continue
		}
		if s.excludesAll(method, requestPath) {
			return nil, nil
		}
		chosen := s.unnamed()
		if chosen == nil {
			return nil, fmt.Errorf("%w: choose one of %s", ErrAmbiguousGate, strings.Join(s.known(), ", "))
		}
		return chosen.unlessExcluded(method, requestPath, s.path), nil
	}
	return nil, nil
}

func (p *Policy) findNamed(method string, sites []site, requestPath, name string) (*Gate, error) {
	var known []string
	for _, s := range sites {
		if !isBelow(requestPath, s.path) {
			continue
		}
		var chosen *sited
		for i := range s.gates {
			g := &s.gates[i]
			if g.id == name {
				chosen = g
				break
			}
			if g.gate.Name == name {
				if chosen != nil {
					return nil, fmt.Errorf("%w: choose one of %s", ErrAmbiguousGate, strings.Join(s.known(), ", "))
				}
				chosen = g
			}
		}
		if chosen != nil {
			return chosen.unlessExcluded(method, requestPath, s.path), nil
		}
		known = append(known, s.known()...)
	}
	if len(known) > 0 {
		return nil, unknownGate(name, known)
	}
	if _, err := p.ByName(name); errors.Is(err, ErrUnknownGate) {
		return nil, err
	}
	return nil, nil
}

// ByName is the gate with this ID or, where only one has it, this name. The
// error is [ErrUnknownGate] or [ErrAmbiguousGate] and lists the gates there are.
func (p *Policy) ByName(name string) (*Gate, error) {
	if g := p.ByID(name); g != nil {
		return g, nil
	}
	var found, known []string
	for _, g := range p.Gates() {
		id := g.ID()
		known = append(known, id)
		if name != "" && g.Name == name {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 0:
		return nil, unknownGate(name, known)
	case 1:
		return p.ByID(found[0]), nil
	default:
		return nil, fmt.Errorf("%w: choose one of %s", ErrAmbiguousGate, strings.Join(found, ", "))
	}
}

func unknownGate(name string, known []string) error {
	if len(known) == 0 {
		known = []string{"none"}
	}
	return fmt.Errorf("%w %s; known: %s", ErrUnknownGate, quoted(name), strings.Join(known, ", "))
}

// fitting is the sites of a URL's authority, longest path first, and the URL's
// path in normal form.
func (p *Policy) fitting(u *url.URL) ([]site, string) {
	a, err := parseAuthority(u)
	if err != nil {
		return nil, ""
	}
	sites := p.sites[a]
	if len(sites) == 0 {
		return nil, ""
	}
	requestPath, ok := normalPath(sentPath(u))
	if !ok {
		return nil, ""
	}
	return sites, requestPath
}

// sentPath is the path that net/http sends.
func sentPath(u *url.URL) string {
	if u.Opaque == "" {
		p := u.EscapedPath()
		if p != "" && p[0] != '/' {
			p = "/" + p
		}
		return p
	}
	opaque := u.Opaque
	if rest, full := strings.CutPrefix(opaque, "//"); full {
		opaque = ""
		if i := strings.IndexByte(rest, '/'); i >= 0 {
			opaque = rest[i:]
		}
	}
	opaque, _, _ = strings.Cut(opaque, "?")
	return opaque
}

func isBelow(requestPath, prefix string) bool {
	return strings.HasPrefix(requestPath, prefix) && (len(requestPath) == len(prefix) || requestPath[len(prefix)] == '/')
}

// unnamed is the gate without a name, or the only one; nil where that is not
// one gate.
func (s *site) unnamed() *sited {
	if len(s.gates) == 1 {
		return &s.gates[0]
	}
	var chosen *sited
	for i := range s.gates {
		if s.gates[i].gate.Name == "" {
			if chosen != nil {
				return nil
			}
			chosen = &s.gates[i]
		}
	}
	return chosen
}

func (s *site) known() []string {
	ids := make([]string, len(s.gates))
	for i, g := range s.gates {
		ids[i] = g.id
	}
	return ids
}

// excludesAll: with no gate left to choose from, no choice is needed.
func (s *site) excludesAll(method, requestPath string) bool {
	for i := range s.gates {
		if s.gates[i].unlessExcluded(method, requestPath, s.path) != nil {
			return false
		}
	}
	return true
}

func (g *sited) unlessExcluded(method, requestPath, prefix string) *Gate {
	below := requestPath[len(prefix):]
	if below == "" {
		below = "/"
	}
	for _, x := range g.exclude {
		if x.method != "" && !strings.EqualFold(x.method, cmp.Or(method, "GET")) {
			continue
		}
		if ok, _ := path.Match(x.pattern, below); ok {
			return nil
		}
	}
	return g.gate
}
