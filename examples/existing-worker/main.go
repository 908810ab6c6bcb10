package main

import (
	"context"
	"log"

	"go.temporal.io/sdk/client"
	sdkworker "go.temporal.io/sdk/worker"

	"sluice/activities"
	"sluice/worker"
)

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	plugin, err := worker.NewPlugin(worker.Options{PolicyFile: "sluice.yaml"}) // new
	if err != nil {
		return err
	}
	c, err := client.Dial(client.Options{Plugins: []client.Plugin{plugin}}) // with the plugin
	if err != nil {
		return err
	}
	defer c.Close()
	w := sdkworker.New(c, "summaries", sdkworker.Options{}) // as before
	w.RegisterActivity(Summarize)
	return w.Run(sdkworker.InterruptCh())
}

func Summarize(ctx context.Context, text string) (string, error) {
	call := activities.CallRequest{URL: "https://api.example.com/v1/summaries", Body: []byte(text)}
	answer, err := new(activities.Caller).CallProvider(ctx, call)
	return string(answer.Body), err
}
