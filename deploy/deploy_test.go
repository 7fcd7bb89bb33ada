// Package deploy holds what packages nextvald. This test looks at it without a container engine.
package deploy

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/nextvald/nextvald/integration/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// compose is as much of the format as docker-compose.yml uses: an unknown key is an error.
type compose struct {
	Services map[string]struct {
		Image       string
		Build       struct{ Context, Dockerfile string }
		User        string
		Environment map[string]string
		Command     []string
		Volumes     []string
		Ports       []string
		DependsOn   map[string]struct{ Condition string } `yaml:"depends_on"`
		Healthcheck *struct {
			Test              []string
			Interval, Timeout string
			Retries           int
		}
	}
	Volumes map[string]*struct{}
}

func readCompose(t *testing.T) compose {
	t.Helper()
	f, err := os.Open("../docker-compose.yml")
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	var c compose
	require.NoError(t, yaml.NewDecoder(f, yaml.Strict()).Decode(&c))
	return c
}

func TestCompose(t *testing.T) {
	c := readCompose(t)
	for _, name := range []string{"postgres", "dynamodb", "nextvald"} {
		assert.Contains(t, c.Services, name)
	}
	for name, s := range c.Services {
		t.Run(name, func(t *testing.T) {
			if s.Image == "" {
				assert.FileExists(t, filepath.Join("..", s.Build.Context, s.Build.Dockerfile))
			} else {
				assert.Regexp(t, `:\d`, s.Image, "an image without a version")
			}
			for _, p := range s.Ports {
				assert.Regexp(t, `^127\.0\.0\.1:\d+:\d+$`, p, "a port that is published beyond this machine")
			}
			if assert.NotNil(t, s.Healthcheck, "no health check") {
				assert.Equal(t, "CMD", s.Healthcheck.Test[0])
				assert.Positive(t, s.Healthcheck.Retries)
			}
			for other, d := range s.DependsOn {
				assert.Contains(t, c.Services, other)
				assert.Equal(t, "service_healthy", d.Condition)
			}
			for _, v := range s.Volumes {
				volume, path, _ := strings.Cut(v, ":")
				assert.Contains(t, c.Volumes, volume)
				assert.True(t, filepath.IsAbs(path), v)
			}
		})
	}
}

// The engine's own reading of the file, where there is one.
func TestComposeByDocker(t *testing.T) {
	for _, command := range [][]string{{"docker", "compose"}, {"docker-compose"}} {
		if exec.Command(command[0], append(command[1:], "version")...).Run() != nil {
			continue
		}
		out, err := exec.Command(command[0], append(command[1:], "-f", "../docker-compose.yml", "config", "-q")...).CombinedOutput()
		require.NoError(t, err, string(out))
		t.Logf("checked by %s", strings.Join(command, " "))
	}
}

// What the file tells nextvald must be settings: with them it gets as far as looking for the services by name.
func TestComposeSettings(t *testing.T) {
	var env []string
	for name, value := range readCompose(t).Services["nextvald"].Environment {
		env = append(env, name+"="+value)
	}
	r := testenv.Command{Args: []string{"serve", "--listen", "127.0.0.1:0", "--admin", ""}, Env: env}.Run(t)
	assert.Equal(t, 1, r.Code)
	assert.Regexp(t, `^nextvald: NEXTVALD_STORE: cannot use the DynamoDB table nextvald at http://dynamodb:8000: .*\n$`, r.Stderr)
}

// The health check of nextvald's own service, run by the same shell as in its image.
func TestComposeHealthCheck(t *testing.T) {
	check := readCompose(t).Services["nextvald"].Healthcheck.Test
	require.Equal(t, []string{"CMD", "bash", "-c"}, check[:3])
	run := func(admin string) error {
		host, port, _ := strings.Cut(admin, ":")
		script := strings.NewReplacer("$$", "$", "127.0.0.1/6480", host+"/"+port).Replace(check[3])
		require.Contains(t, script, host+"/"+port)
		return exec.Command("bash", "-c", script).Run()
	}
	p := testenv.Start(t, "--store", "memory:")
	require.NoError(t, run(p.Admin))
	require.Error(t, run(p.Address), "something that is not healthy passes")
	p.Stop()
	require.Error(t, run(p.Admin), "something that is not there passes")
}

func TestDockerfile(t *testing.T) {
	text, err := os.ReadFile("Dockerfile")
	require.NoError(t, err)
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(mod)[1]
	assert.Contains(t, string(text), "FROM golang:"+string(version)+"-", "built by another Go than go.mod's")

	// Of the last stage, which is the image.
	user, entry := "", ""
	stages := 0
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "FROM":
			stages++
			user, entry = "", ""
			assert.Regexp(t, `:\S`, rest, "an image without a version")
		case "USER":
			user = rest
		case "ENTRYPOINT":
			entry = rest
		}
	}
	assert.Equal(t, 2, stages)
	assert.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, user, "runs as root")
	assert.Equal(t, `["/usr/local/bin/nextvald"]`, entry)
}

// What systemd would start gets as far as serving, with a file of settings in the place of its own.
func TestSystemdUnit(t *testing.T) {
	text, err := os.ReadFile("nextvald.service")
	require.NoError(t, err)
	unit := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(key, "#") {
			unit[key] = value
		}
	}
	command := strings.Fields(unit["ExecStart"])
	require.Equal(t, []string{"/usr/local/bin/nextvald", "serve", "--config", "/etc/nextvald/nextvald.yaml"}, command)
	assert.Equal(t, "notify", unit["Type"])
	assert.Equal(t, "/bin/kill -HUP $MAINPID", unit["ExecReload"])
	file := filepath.Join(t.TempDir(), "nextvald.yaml")
	require.NoError(t, os.WriteFile(file, []byte("store: \"memory:\"\n"), 0o600))
	testenv.Start(t, "--config", file).Stop()
	if path, err := exec.LookPath("systemd-analyze"); err == nil {
		out, err := exec.Command(path, "verify", "--man=no", "nextvald.service").CombinedOutput()
		assert.NotContains(t, string(out), "Unknown key", err)
	}
}
