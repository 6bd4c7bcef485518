// The page "Inference history" of a Dag: what its last runs cost, answered and failed.
import { MUTED, plain, read, readTasks, readXCom } from "./airflow.js";

(() => {
  const { createElement: h, useEffect, useState } = globalThis.React;
  const RUNS = 50;
  const AT_ONCE = 6;
  const [WIDTH, HEIGHT, LEFT, BOTTOM] = [560, 150, 72, 22];

  async function readRun(dagId, run) {
    const tasks = await readTasks(dagId, run.dag_run_id);
    const reports = [];
    for (const task of tasks) {
      // @task.llmbeam may return the answers: its manifest is an XCom of its own then.
      for (const key of ["return_value", "manifest"]) {
        const report = await readXCom(task, key);
        if (report?.rows && !Array.isArray(report)) {
          reports.push(report);
          break;
        }
      }
    }
    return { run, tasks: tasks.length, reports };
  }

  async function readHistory(dagId) {
    const found = await read(`api/v2/dags/${encodeURIComponent(dagId)}/dagRuns?limit=${RUNS}&order_by=-run_after`);
    const runs = [...(found?.dag_runs ?? [])].reverse();
    const history = [];
    for (let first = 0; first < runs.length; first += AT_ONCE) {
      history.push(...(await Promise.all(runs.slice(first, first + AT_ONCE).map((run) => readRun(dagId, run)))));
    }
    return history.filter(({ tasks }) => tasks > 0);
  }

  const sum = (reports, pick) => {
    const values = reports.map(pick).filter((value) => typeof value === "number" && Number.isFinite(value));
    return values.length ? values.reduce((total, value) => total + value, 0) : undefined;
  };

  const costOf = (reports) => sum(reports, (report) => report.cost_usd);

  const MEASURES = [
    ["Cost in US dollars", costOf],
    ["Rows answered", (reports) => sum(reports, (report) => report.rows.answered)],
    ["Rows in the dead letter", (reports) => sum(reports, (report) => report.rows.dead_letter)],
    ["Tokens", (reports) => sum(reports, (report) => (report.tokens?.input ?? 0) + (report.tokens?.output ?? 0))],
    ["Duration in minutes", (reports) => {
      const seconds = sum(reports, (report) => report.duration_seconds);
      return seconds === undefined ? undefined : seconds / 60;
    }],
  ];

  const short = (value) =>
    value === undefined ? "–" : value.toLocaleString(undefined, Number.isInteger(value) ? {} : { maximumSignificantDigits: 3 });

  const shown = (measure, reports) => {
    const value = short(measure(reports));
    const unknown = measure === costOf ? reports.filter((report) => costOf([report]) === undefined).length : 0;
    if (!unknown || unknown === reports.length) return value;
    return `at least ${value}; the cost of ${unknown} ${unknown === 1 ? "task" : "tasks"} is not known`;
  };

  function Plot({ title, points }) {
    const values = points.map(({ value }) => value ?? 0);
    const most = Math.max(...values, 1e-9);
    const step = (WIDTH - LEFT) / Math.max(points.length, 1);
    const y = (value) => (HEIGHT - BOTTOM) * (1 - value / most) + 6;
    const bars = points.map(({ label, value, text, state, hasChanged }, index) =>
      h("rect", {
          key: index, x: LEFT + index * step + step * 0.1, width: Math.max(step * 0.8, 1),
          y: y(value ?? 0), height: Math.max(y(0) - y(value ?? 0), value === undefined ? 0 : 1),
          fill: state === "failed" ? "#dc2626" : hasChanged ? "#d97706" : "#3b82f6",
        },
        h("title", null, `${label}: ${text}`)));
    return h("figure", { style: { margin: "0 0 1.5rem" } },
      h("figcaption", { style: { fontWeight: 600 } }, title),
      h("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 8}`, role: "img", "aria-label": title, style: { width: "100%", maxWidth: "40rem" } },
        h("line", { x1: LEFT, x2: WIDTH, y1: y(0), y2: y(0), stroke: "currentColor", strokeOpacity: 0.4 }),
        (most > 1e-9 ? [[most, 12], [0, y(0)]] : []).map(([value, at], index) =>
          h("text", { key: index, x: LEFT - 6, y: at, textAnchor: "end", fontSize: 11, fill: "currentColor" }, short(index ? 0 : value))),
        points.length ? [points[0], points.at(-1)].map((point, index) =>
          h("text", { key: index, x: index ? WIDTH : LEFT, y: HEIGHT + 4, textAnchor: index ? "end" : "start", fontSize: 11, fill: "currentColor" },
            points.length > 1 || !index ? point.day : "")) : null,
        bars));
  }

  function Runs({ dagId, history }) {
    const head = ["Run", "State", ...MEASURES.map(([title]) => title), "Model", "Changed since the runs before"];
    const style = { overflowWrap: "anywhere", minWidth: "4rem", padding: "0.25rem 0.75rem 0.25rem 0", textAlign: "left", borderBottom: "1px solid color-mix(in srgb, currentColor 20%, transparent)" };
    const link = (run) => new URL(`dags/${encodeURIComponent(dagId)}/runs/${encodeURIComponent(run.dag_run_id)}/plugin/inference-run`, document.baseURI).href;
    return h("div", { style: { overflowX: "auto" } },
      h("table", { style: { width: "100%", fontSize: "0.9rem", borderCollapse: "collapse" } },
        h("thead", null, h("tr", null, head.map((title) => h("th", { key: title, style }, title)))),
        h("tbody", null, [...history].reverse().map(({ run, reports }) =>
          h("tr", { key: run.dag_run_id },
            h("td", { style }, h("a", { href: link(run), style: { textDecoration: "underline" } }, run.dag_run_id)),
            h("td", { style }, run.state),
            MEASURES.map(([title, measure]) => h("td", { key: title, style }, shown(measure, reports))),
            h("td", { style }, [...new Set(reports.map((report) => plain(report.model)))].join(", ")),
            h("td", { style }, reports.flatMap((report) => report.changes ?? []).map(plain).join("; ")))))));
  }

  function History({ dagId }) {
    const [state, setState] = useState({});
    useEffect(() => {
      let isOver = false;
      readHistory(dagId).then(
        (history) => isOver || setState({ history }),
        (error) => isOver || setState({ error: String(error.message ?? error) }),
      );
      return () => { isOver = true; };
    }, [dagId]);
    const { history, error } = state;
    const body = error
      ? h("p", { role: "alert" }, error)
      : history === undefined
        ? h("p", { style: MUTED }, "Loading …")
        : history.length === 0
          ? h("p", { style: MUTED }, "No run of this Dag has run inference.")
          : h("div", null,
              h("p", { style: MUTED }, "Orange: answers, model or prompt differ from the runs before. Red: the run failed."),
              h("div", { style: { display: "grid", gridTemplateColumns: "repeat(auto-fit, minmax(20rem, 1fr))", gap: "1rem" } },
                MEASURES.map(([title, measure]) =>
                  h(Plot, { key: title, title, points: history.map(({ run, reports }) => ({
                    label: run.dag_run_id, day: String(run.logical_date ?? run.run_after ?? "").slice(0, 10), state: run.state, value: measure(reports), text: shown(measure, reports),
                    hasChanged: reports.some((report) => report.changes?.length) })) }))),
              h(Runs, { dagId, history }));
    return h("div", { style: { padding: "1rem", overflowY: "auto", height: "100%" }, "data-testid": "llmbeam-history" }, body);
  }

  globalThis["Inference history"] = globalThis.AirflowPlugin = History;
})();
