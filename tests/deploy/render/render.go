// Renders a Helm chart as Helm does: Go's templates with sprig's functions, and Helm's own that our chart may use. For tests on machines without
// Helm, whose own engine comes with Kubernetes' clients and takes minutes to compile; where there is a `helm`, tests compare the two.
//
// Standard input has a JSON object: chart, the folder; values, already merged; release and capabilities as templates see them. Standard output has
// one with what each template made of it. A template that fails ends the program with the exit code 1 and its words.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig/v3"
	"sigs.k8s.io/yaml"
)

type asked struct {
	Chart   string         `json:"chart"`
	Values  map[string]any `json:"values"`
	Release map[string]any `json:"release"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	var what asked
	if err := json.NewDecoder(os.Stdin).Decode(&what); err != nil {
		return err
	}
	about := map[string]any{}
	raw, err := os.ReadFile(filepath.Join(what.Chart, "Chart.yaml"))
	if err == nil {
		err = yaml.Unmarshal(raw, &about)
	}
	if err != nil {
		return err
	}
	chart := map[string]any{}
	for key, value := range about { // `.Chart.AppVersion`
		chart[strings.ToUpper(key[:1])+key[1:]] = value
	}
	files, err := filepath.Glob(filepath.Join(what.Chart, "templates", "*"))
	if err != nil {
		return err
	}
	root := template.New("chart").Option("missingkey=zero")
	root.Funcs(functions(root))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil {
			_, err = root.New(filepath.Base(file)).Parse(string(text))
		}
		if err != nil {
			return err
		}
	}
	made := map[string]string{}
	for _, file := range files {
		name := filepath.Base(file)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var text bytes.Buffer
		values := map[string]any{"Values": what.Values, "Chart": chart, "Release": what.Release}
		if err := root.ExecuteTemplate(&text, name, values); err != nil {
			return err
		}
		made[name] = strings.ReplaceAll(text.String(), "<no value>", "")
	}
	return json.NewEncoder(os.Stdout).Encode(made)
}

func functions(root *template.Template) template.FuncMap {
	found := sprig.TxtFuncMap()
	delete(found, "env")
	delete(found, "expandenv")
	found["toYaml"] = func(value any) string {
		text, err := yaml.Marshal(value)
		if err != nil {
			return ""
		}
		return strings.TrimSuffix(string(text), "\n")
	}
	found["include"] = func(name string, data any) (string, error) {
		var text bytes.Buffer
		err := root.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	found["fail"] = func(text string) (string, error) { return "", errors.New(text) }
	found["required"] = func(text string, value any) (any, error) {
		if value == nil || value == "" {
			return nil, errors.New(text)
		}
		return value, nil
	}
	return found
}
