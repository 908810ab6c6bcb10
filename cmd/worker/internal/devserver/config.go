package devserver

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"go.temporal.io/server/common/cluster"
	serverconfig "go.temporal.io/server/common/config"
	"go.temporal.io/server/common/dynamicconfig"
	"go.temporal.io/server/common/membership/static"
	sqliteplugin "go.temporal.io/server/common/persistence/sql/sqlplugin/sqlite"
	"go.temporal.io/server/common/primitives"
)

// clusterName is recorded in the database and can't change for a file once set up.
const clusterName = "active"

// services in the order of their ports.
var services = []primitives.ServiceName{
	primitives.FrontendService,
	primitives.HistoryService,
	primitives.MatchingService,
	primitives.WorkerService,
}

// storeConfig says how the server's SQLite plugin connects: to the file, or with nil
// to memory of its own.
func storeConfig(db *database) *serverconfig.SQL {
	c := &serverconfig.SQL{PluginName: sqliteplugin.PluginName}
	if db == nil {
		// A name of its own: the plugin shares one database among all equal names in the process.
		c.DatabaseName = fmt.Sprintf("sluice-%016x", rand.Uint64())
		c.ConnectAttributes = map[string]string{"mode": "memory", "cache": "shared"}
		return c
	}
	// The plugin makes a pragma of each attribute that isn't a URI parameter, under
	// that very name. So it is journal_mode and not _journal_mode, as other drivers
	// spell it: SQLite ignores a pragma that it doesn't know, without a word.
	c.DatabaseName = uriPath(db.file)
	c.ConnectAttributes = map[string]string{"mode": "rw"}
	for _, p := range pragmas {
		c.ConnectAttributes[p.name] = p.value
	}
	// One connection, the default: SQLite has one writer, and a second connection would
	// make transactions that read before they write fail as locked.
	return c
}

func serverConfig(ip string, ports *ports, store *serverconfig.SQL) *serverconfig.Config {
	c := &serverconfig.Config{
		Persistence: serverconfig.Persistence{
			DefaultStore:     store.PluginName,
			VisibilityStore:  store.PluginName,
			NumHistoryShards: 1, // recorded in the database as well
			DataStores:       map[string]serverconfig.DataStore{store.PluginName: {SQL: store}},
		},
		ClusterMetadata: &cluster.Config{
			FailoverVersionIncrement: 10,
			MasterClusterName:        clusterName,
			CurrentClusterName:       clusterName,
			ClusterInformation: map[string]cluster.ClusterInformation{
				clusterName: {Enabled: true, InitialFailoverVersion: 1, RPCAddress: ports.frontend()},
			},
		},
		DCRedirectionPolicy: serverconfig.DCRedirectionPolicy{Policy: "noop"},
		PublicClient:        serverconfig.PublicClient{HostPort: ports.frontend()},
		Archival: serverconfig.Archival{
			History:    serverconfig.HistoryArchival{State: "disabled"},
			Visibility: serverconfig.VisibilityArchival{State: "disabled"},
		},
		NamespaceDefaults: serverconfig.NamespaceDefaults{
			Archival: serverconfig.ArchivalNamespaceDefaults{
				History:    serverconfig.HistoryArchivalNamespaceDefaults{State: "disabled"},
				Visibility: serverconfig.VisibilityArchivalNamespaceDefaults{State: "disabled"},
			},
		},
		Services: map[string]serverconfig.Service{},
		// Global.Metrics and Global.PProf stay zero: neither listens then.
	}
	for i, name := range services {
		c.Services[string(name)] = serverconfig.Service{
			RPC: serverconfig.RPC{BindOnIP: ip, GRPCPort: ports.numbers[i]},
		}
	}
	return c
}

// hosts is the whole cluster. It spares the gossip that would find it: a port per
// service, and seconds at start and stop.
func (p *ports) hosts() map[primitives.ServiceName]static.Hosts {
	hosts := make(map[primitives.ServiceName]static.Hosts)
	for i, name := range services {
		hosts[name] = static.SingleLocalHost(p.address(i))
	}
	return hosts
}

func (p *ports) frontend() string { return p.address(0) }

func (p *ports) address(i int) string {
	return net.JoinHostPort(p.ip, strconv.Itoa(p.numbers[i]))
}

func dynamicConfig(defaults bool) dynamicconfig.Client {
	c := dynamicconfig.StaticClient{
		// A server in somebody's test calls nobody's home.
		dynamicconfig.EnableServerVersionCheck.Key(): false,
	}
	if defaults {
		return c
	}
	const unlimited = 1_000_000 // requests per second

	// A queue is read at most 20 times per second by default: a signal or a finished
	// task then wakes its workflow up to 50 ms later, a timer fires up to 50 ms late.
	c[dynamicconfig.TransferProcessorMaxPollRPS.Key()] = 1000
	c[dynamicconfig.TimerProcessorMaxPollRPS.Key()] = 1000
	c[dynamicconfig.VisibilityProcessorMaxPollRPS.Key()] = 1000

	// Four partitions serve many matching hosts; on one they only make a task and its
	// poller miss each other.
	c[dynamicconfig.MatchingNumTaskqueueReadPartitions.Key()] = 1
	c[dynamicconfig.MatchingNumTaskqueueWritePartitions.Key()] = 1

	// A worker process that is gone leaves task queues of its own behind, which are
	// looked after for five minutes by default.
	c[dynamicconfig.MatchingMaxTaskQueueIdleTime.Key()] = 20 * time.Second

	// One update of a workflow beyond ten is refused by default, and then the server
	// (v1.32.1) forgets all that are in flight, with the task that has them: a gate with
	// a crowd of holders stands still for seconds. Here there is room for a crowd.
	c[dynamicconfig.WorkflowExecutionMaxInFlightUpdates.Key()] = 1000

	// Of the queries that wait for a workflow task all but one are refused by default.
	// Who sends an exchange by signal reads the answer by query: all at once, in a crowd.
	c[dynamicconfig.MaxBufferedQueryCount.Key()] = 1000

	// Rate limits protect tenants of a cluster from one another. Limits that a design
	// has to live with anywhere (updates per run, sizes) stay at their defaults.
	c[dynamicconfig.FrontendRPS.Key()] = unlimited
	c[dynamicconfig.FrontendMaxNamespaceRPSPerInstance.Key()] = unlimited
	c[dynamicconfig.FrontendMaxNamespaceVisibilityRPSPerInstance.Key()] = unlimited
	c[dynamicconfig.FrontendNamespaceReplicationInducingAPIsRPS.Key()] = unlimited
	c[dynamicconfig.FrontendMaxNamespaceNamespaceReplicationInducingAPIsRPSPerInstance.Key()] = unlimited
	c[dynamicconfig.FrontendGlobalNamespaceNamespaceReplicationInducingAPIsRPS.Key()] = 0 // else it overrides the one above
	c[dynamicconfig.HistoryRPS.Key()] = unlimited
	c[dynamicconfig.MatchingRPS.Key()] = unlimited
	c[dynamicconfig.FrontendPersistenceMaxQPS.Key()] = unlimited
	c[dynamicconfig.HistoryPersistenceMaxQPS.Key()] = unlimited
	c[dynamicconfig.MatchingPersistenceMaxQPS.Key()] = unlimited
	c[dynamicconfig.WorkerPersistenceMaxQPS.Key()] = unlimited

	// A new search attribute can be used at once.
	c[dynamicconfig.ForceSearchAttributesCacheRefreshOnRead.Key()] = true

	// Each worker process would report itself every minute, for a list nobody looks at.
	c[dynamicconfig.WorkerHeartbeatsEnabled.Key()] = false
	return c
}
