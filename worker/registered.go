package worker

import (
	"reflect"
	"runtime"
	"strings"

	"go.temporal.io/sdk/activity"
)

// activityNames are the types under which the SDK registers an activity: a
// function's name, or those of a struct's methods behind the given prefix.
func activityNames(a any, o activity.RegisterOptions) []string {
	v := reflect.ValueOf(a)
	if !v.IsValid() {
		return nil
	}
	if v.Kind() == reflect.Func {
		if o.Name != "" {
			return []string{o.Name}
		}
		return []string{functionName(v)}
	}
	var names []string
	for i := range v.NumMethod() {
		names = append(names, o.Name+v.Type().Method(i).Name)
	}
	return names
}

func functionName(v reflect.Value) string {
	name := runtime.FuncForPC(v.Pointer()).Name()
	name = name[strings.LastIndexByte(name, '.')+1:]
	return strings.TrimSuffix(name, "-fm") // of a method value
}
