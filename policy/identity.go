package policy

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// WorkflowIDPrefix stands before the gate ID in the ID of the gate's workflow.
const WorkflowIDPrefix = "sluice/"

const maxEndpointLength = 512

// ID is the gate's identity, provider@host[:port]/path[#name], such as
// openai@api.openai.com/v1#gpt-4o. The scheme is left out where it is https;
// an http endpoint keeps it: openai@http://localhost:8080/v1. Two spellings of
// one endpoint give one ID. It is empty where provider, endpoint or name is not
// valid. It never holds userinfo, query or fragment.
func (g Gate) ID() string {
	provider, name := lowerASCII(strings.TrimSpace(g.Provider)), strings.TrimSpace(g.Name)
	e, err := parseEndpoint(g.Endpoint)
	if err != nil || !validProvider(provider) || name != "" && !validName(name) {
		return ""
	}
	id := provider + "@" + strings.TrimPrefix(e.String(), "https://")
	if name != "" {
		id += "#" + name
	}
	return id
}

// WorkflowID is the ID of the gate's workflow: "sluice/" and the gate ID. It is
// at most 720 bytes; empty where the ID is.
func (g Gate) WorkflowID() string {
	id := g.ID()
	if id == "" {
		return ""
	}
	return WorkflowIDPrefix + id
}

// CanonicalEndpoint is the one spelling of an endpoint, scheme://host[:port]/path:
// white space around it trimmed, scheme and host lower-case, an international
// host in its ASCII form, default port and trailing slashes dropped, dot
// segments resolved, percent-encoding normalised (RFC 3986, section 6.2.2),
// IPv6 in brackets in its shortest form (RFC 5952). Userinfo, query and
// fragment are discarded. An error never repeats the input, which may hold a
// secret.
func CanonicalEndpoint(raw string) (string, error) {
	e, err := parseEndpoint(raw)
	if err != nil {
		return "", err
	}
	return e.String(), nil
}

// authority is where an endpoint is served.
type authority struct {
	scheme string // http or https
	host   string // IPv6 in brackets
	port   string // empty for the scheme's default
}

type endpoint struct {
	authority
	path string // empty, or with a leading and no trailing slash
}

func (e endpoint) String() string {
	s := e.scheme + "://" + e.host
	if e.port != "" {
		s += ":" + e.port
	}
	return s + e.path
}

// None of these errors may repeat a part of the endpoint.
var (
	errEndpointEmpty  = errors.New("is empty")
	errEndpointLong   = errors.New("is too long")
	errEndpointURL    = errors.New("is not a URL (not shown: it may hold a secret)")
	errEndpointScheme = errors.New("has neither http nor https as its scheme")
	errEndpointHost   = errors.New("has a host that is not valid")
	errEndpointPort   = errors.New("has a port that is not 1 to 65535")
	errEndpointPath   = errors.New("has a path with a percent sign that encodes nothing")
)

func parseEndpoint(raw string) (endpoint, error) {
	s := strings.TrimSpace(raw)
	if s == "" {
		return endpoint{}, errEndpointEmpty
	}
	scheme, rest, full := strings.Cut(s, "://")
	switch {
	case strings.HasPrefix(s, "//"):
		s, rest = "https:"+s, s[2:]
	case !full || strings.ContainsAny(scheme, "/?#@"): // no scheme: what was cut at stands in the path or later
		if before, _, _ := strings.Cut(lowerASCII(s), ":"); before == "http" || before == "https" {
			return endpoint{}, errEndpointURL // https:/host: a slash is missing
		}
		s, rest = "https://"+s, s
	}
	u, err := url.Parse(s)
	if err != nil { // it repeats the input: not passed on
		return endpoint{}, errEndpointURL
	}
	a, err := parseAuthority(u)
	if err != nil {
		return endpoint{}, err
	}
	// The path as it was written: net/url decodes %2F where it also has to
	// encode another character.
	rawPath := ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 && rest[i] == '/' {
		rawPath, _, _ = strings.Cut(rest[i:], "#")
		rawPath, _, _ = strings.Cut(rawPath, "?")
	}
	path, ok := normalPath(rawPath)
	if !ok {
		return endpoint{}, errEndpointPath
	}
	e := endpoint{a, path}
	if len(e.String()) > maxEndpointLength {
		return endpoint{}, errEndpointLong
	}
	return e, nil
}

func parseAuthority(u *url.URL) (authority, error) {
	a := authority{scheme: lowerASCII(u.Scheme)}
	if a.scheme != "http" && a.scheme != "https" {
		return authority{}, errEndpointScheme
	}
	host, ok := normalHost(u.Hostname(), strings.HasPrefix(u.Host, "["))
	if !ok {
		return authority{}, errEndpointHost
	}
	a.host = host
	if port := strings.TrimLeft(u.Port(), "0"); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return authority{}, errEndpointPort
		}
		if !(a.scheme == "https" && n == 443) && !(a.scheme == "http" && n == 80) {
			a.port = port
		}
	} else if u.Port() != "" {
		return authority{}, errEndpointPort // port 0
	}
	return a, nil
}

// idnaProfile maps as browsers do, and leaves names with an underscore or an
// odd hyphen alone, which internal hosts have.
var idnaProfile = idna.New(idna.MapForLookup(), idna.BidiRule(), idna.Transitional(false),
	idna.StrictDomainName(false), idna.CheckHyphens(false))

// normalHost allocates nothing for a host that is normal already, unless it is
// an IPv6 address.
func normalHost(host string, bracketed bool) (string, bool) {
	if bracketed {
		return normalIPv6(host)
	}
	if !isASCII(host) {
		ascii, err := idnaProfile.ToASCII(host)
		if err != nil {
			return "", false
		}
		host = ascii
	}
	host = lowerASCII(strings.TrimSuffix(host, ".")) // the root's dot names the same host
	label := 0
	for _, c := range []byte(host) {
		switch {
		case c == '.' && label > 0:
			label = 0
		case isAlphanumeric(c) || c == '-' || c == '_':
			label++
		default:
			return "", false
		}
	}
	return host, label > 0 && len(host) <= 253
}

func normalIPv6(host string) (string, bool) {
	ip, err := netip.ParseAddr(host)
	if err != nil || !ip.Is6() {
		return "", false
	}
	zone := ip.Zone()
	if zone == "" {
		return "[" + ip.String() + "]", true
	}
	for _, c := range []byte(zone) {
		if !isUnreserved(c) {
			return "", false
		}
	}
	return "[" + ip.WithZone("").String() + "%25" + zone + "]", true
}

// normalPath normalises percent-encoding and dot segments (RFC 3986, sections
// 6.2.2.2 and 6.2.2.3) and drops trailing slashes. It is false where a percent
// sign encodes nothing. It allocates nothing for a path that is normal already,
// but for trailing slashes.
func normalPath(p string) (string, bool) {
	if !plainPath(p) {
		encoded, ok := normalEncoding(p)
		if !ok {
			return "", false
		}
		p = withoutDotSegments(encoded)
	}
	return strings.TrimRight(p, "/"), true
}

// plainPath reports whether a path needs no normalising.
func plainPath(p string) bool {
	for i := range len(p) {
		if !isPathByte(p[i]) || p[i] == '.' && i > 0 && p[i-1] == '/' {
			return false
		}
	}
	return true
}

func normalEncoding(p string) (string, bool) {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		c := p[i]
		if c == '%' {
			if i+2 >= len(p) || unhex(p[i+1]) < 0 || unhex(p[i+2]) < 0 {
				return "", false
			}
			c = byte(unhex(p[i+1])<<4 | unhex(p[i+2]))
			i += 2
			if isUnreserved(c) {
				b.WriteByte(c)
				continue
			}
		} else if isPathByte(c) {
			b.WriteByte(c)
			continue
		}
		b.WriteByte('%')
		b.WriteByte(hex[c>>4])
		b.WriteByte(hex[c&15])
	}
	return b.String(), true
}

// withoutDotSegments is RFC 3986, section 5.2.4, for a path that is empty or
// begins with a slash.
func withoutDotSegments(p string) string {
	var kept []string
	for _, segment := range strings.Split(strings.TrimPrefix(p, "/"), "/") {
		switch segment {
		case ".":
		case "..":
			kept = kept[:max(0, len(kept)-1)]
		default:
			kept = append(kept, segment)
		}
	}
	if len(kept) == 0 {
		return ""
	}
	return "/" + strings.Join(kept, "/")
}

func validProvider(s string) bool {
	for i, c := range []byte(s) {
		lower := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !lower && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return s != "" && len(s) <= 64
}

func validName(s string) bool {
	for _, c := range []byte(s) {
		if !isAlphanumeric(c) && !strings.ContainsRune("._:/-", rune(c)) {
			return false
		}
	}
	return s != "" && len(s) <= 128
}

// lowerASCII leaves other letters alone: the Kelvin sign must not become a k.
func lowerASCII(s string) string {
	for i := range len(s) {
		if s[i] < 'A' || s[i] > 'Z' {
			continue
		}
		b := []byte(s)
		for ; i < len(b); i++ {
			if b[i] >= 'A' && b[i] <= 'Z' {
				b[i] += 'a' - 'A'
			}
		}
		return string(b)
	}
	return s
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

// isUnreserved is RFC 3986, section 2.3.
func isUnreserved(c byte) bool {
	return isAlphanumeric(c) || c == '-' || c == '.' || c == '_' || c == '~'
}

// isPathByte reports what stands in a path as itself: pchar of RFC 3986,
// section 3.3, and the slash.
func isPathByte(c byte) bool {
	switch c {
	case '!', '$', '&', '\'', '(', ')', '*', '+', ',', ';', '=', ':', '@', '/':
		return true
	}
	return isUnreserved(c)
}

func unhex(c byte) int {
	switch {
	case c >= '0' && c <= '9':
		return int(c - '0')
	case c >= 'a' && c <= 'f':
		return int(c-'a') + 10
	case c >= 'A' && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
