package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
)

// linesConfig is the configuration of the exporter "lines".
type linesConfig struct {
	// Path is the file that gets one line for each export: the request in the
	// OTLP JSON encoding. A line is in the file before the sender is answered.
	Path string `mapstructure:"path"`
}

func (c *linesConfig) Validate() error {
	if c.Path == "" {
		return errors.New("path is not set")
	}
	return nil
}

func newLinesFactory() exporter.Factory {
	const level = component.StabilityLevelDevelopment
	return exporter.NewFactory(component.MustNewType("lines"),
		func() component.Config { return &linesConfig{} },
		exporter.WithTraces(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Traces, error) {
			f := &lineFile{path: cfg.(*linesConfig).Path}
			m := ptrace.JSONMarshaler{}
			return exporterhelper.NewTraces(ctx, set, cfg, func(_ context.Context, td ptrace.Traces) error {
				return f.append(m.MarshalTraces(td))
			}, exporterhelper.WithStart(f.start), exporterhelper.WithShutdown(f.shutdown))
		}, level),
		exporter.WithMetrics(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Metrics, error) {
			f := &lineFile{path: cfg.(*linesConfig).Path}
			m := pmetric.JSONMarshaler{}
			return exporterhelper.NewMetrics(ctx, set, cfg, func(_ context.Context, md pmetric.Metrics) error {
				return f.append(m.MarshalMetrics(md))
			}, exporterhelper.WithStart(f.start), exporterhelper.WithShutdown(f.shutdown))
		}, level),
		exporter.WithLogs(func(ctx context.Context, set exporter.Settings, cfg component.Config) (exporter.Logs, error) {
			f := &lineFile{path: cfg.(*linesConfig).Path}
			m := plog.JSONMarshaler{}
			return exporterhelper.NewLogs(ctx, set, cfg, func(_ context.Context, ld plog.Logs) error {
				return f.append(m.MarshalLogs(ld))
			}, exporterhelper.WithStart(f.start), exporterhelper.WithShutdown(f.shutdown))
		}, level))
}

type lineFile struct {
	path string
	mu   sync.Mutex
	f    *os.File
}

func (l *lineFile) start(context.Context, component.Host) error {
	f, err := os.OpenFile(l.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	l.f = f
	return err
}

func (l *lineFile) append(line []byte, err error) error {
	if err != nil {
		return fmt.Errorf("encoding: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err = l.f.Write(append(line, '\n'))
	return err
}

func (l *lineFile) shutdown(context.Context) error {
	if l.f == nil {
		return nil
	}
	return l.f.Close()
}
