// Evaluates PromQL by Prometheus' own engine, over scrapes that its own parser reads. Standard input: {"scrapes": [{"time": ms,
// "job": "", "instance": "", "type": "", "text": ""}], "samples": [...], "time": ms, "expressions": [""], "rules": ["file's text"]}.
// Standard output: {"results": [{"error": "", "series": [{"labels": {}, "value": 0}], "selectors": {"text": series}}], "rules": ["errors"]}.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
)

type scrape struct {
	Time     int64  `json:"time"`
	Job      string `json:"job"`
	Instance string `json:"instance"`
	Type     string `json:"type"`
	Text     string `json:"text"`
}

type request struct {
	Scrapes     []scrape `json:"scrapes"`
	Time        int64    `json:"time"`
	Expressions []string `json:"expressions"`
	Rules       []string `json:"rules"`
}

type series struct {
	Labels map[string]string `json:"labels"`
	Value  string            `json:"value"`
}

type result struct {
	Error     string         `json:"error"`
	Series    []series       `json:"series"`
	Selectors map[string]int `json:"selectors"`
}

type answer struct {
	Results []result `json:"results"`
	Rules   []string `json:"rules"`
}

func add(db *tsdb.DB, one scrape) error {
	p, err := textparse.New([]byte(one.Text), one.Type, "", false, true, false, labels.NewSymbolTable())
	if err != nil {
		return err
	}
	app := db.Appender(context.Background())
	put := func(lset labels.Labels, value float64) error {
		builder := labels.NewBuilder(lset)
		builder.Set("job", one.Job)
		builder.Set("instance", one.Instance)
		_, err := app.Append(0, builder.Labels(), one.Time, value)
		return err
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("the scrape of %s cannot be read: %w", one.Instance, err)
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var lset labels.Labels
		_, _, value := p.Series()
		p.Labels(&lset)
		if err := put(lset, value); err != nil {
			return err
		}
	}
	if err := put(labels.FromStrings(labels.MetricName, "up"), 1); err != nil {
		return err
	}
	return app.Commit()
}

func evaluate(engine *promql.Engine, db *tsdb.DB, expression string, at time.Time) ([]series, error) {
	query, err := engine.NewInstantQuery(context.Background(), db, nil, expression, at)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	found := query.Exec(context.Background())
	if found.Err != nil {
		return nil, found.Err
	}
	told := []series{}
	switch value := found.Value.(type) {
	case promql.Vector:
		for _, one := range value {
			text := fmt.Sprint(one.F)
			if math.IsNaN(one.F) {
				text = "NaN"
			}
			told = append(told, series{one.Metric.Map(), text})
		}
	case promql.Scalar:
		told = append(told, series{map[string]string{}, fmt.Sprint(value.V)})
	}
	return told, nil
}

func selectors(expression string) []string {
	found := []string{}
	expr, err := parser.ParseExpr(expression)
	if err != nil {
		return found
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if one, ok := node.(*parser.VectorSelector); ok {
			found = append(found, one.String())
		}
		return nil
	})
	return found
}

func run() error {
	var asked request
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "evaluate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	db, err := tsdb.Open(folder, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, one := range asked.Scrapes {
		if err := add(db, one); err != nil {
			return err
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 5_000_000, Timeout: time.Minute, EnableAtModifier: true, EnableNegativeOffset: true})
	told, at := answer{Results: []result{}, Rules: []string{}}, time.UnixMilli(asked.Time)
	for _, expression := range asked.Expressions {
		one := result{Selectors: map[string]int{}}
		if one.Series, err = evaluate(engine, db, expression, at); err != nil {
			one.Error = err.Error()
		}
		for _, selector := range selectors(expression) {
			if found, err := evaluate(engine, db, selector, at); err == nil {
				one.Selectors[selector] = len(found)
			}
		}
		told.Results = append(told.Results, one)
	}
	for _, text := range asked.Rules {
		_, failures := rulefmt.Parse([]byte(text), false)
		for _, failure := range failures {
			told.Rules = append(told.Rules, failure.Error())
		}
	}
	return json.NewEncoder(os.Stdout).Encode(told)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
