// The page "Inference history" of a Dag: what its last runs, or those of a backfill, cost, answered and failed.
import { isMeasuring, isRunning, MUTED, plain, read, readLog, readTasks, readXCom } from "./airflow.js";

(() => {
  const { createElement: h, useEffect, useState } = globalThis.React;
  const RUNS = 50;
  const AT_ONCE = 6;
  const MAX_REASON = 300;
  const [WIDTH, HEIGHT, LEFT, BOTTOM] = [560, 150, 100, 22];

  async function readRun(dagId, run) {
    const all = await readTasks(dagId, run.dag_run_id);
    const tasks = all.filter(isRunning);
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
    const failed = run.state === "failed" && tasks.length ? all.filter((task) => task.state === "failed") : [];
    return { run, tasks: tasks.length, reports, reasons: await Promise.all(failed.map(readReason)) };
  }

  async function readReason(task) {
    const known = isRunning(task) || isMeasuring(task) ? await readLog(task).catch(() => ({})) : {};
    const reason = plain(known.error).replace(/\s+/g, " ");
    const cut = reason.length > MAX_REASON ? `${reason.slice(0, MAX_REASON - 1)}…` : reason;
    return `${task.task_id} failed${cut && `: ${cut}`}`;
  }

  const day = (time) => String(time ?? "").slice(0, 10);
  const timeOf = (run) => String(run.logical_date ?? run.run_after ?? "");

  async function readRuns(dagId, backfill) {
    const runs = [];
    const path = `api/v2/dags/${encodeURIComponent(dagId)}/dagRuns`;
    if (!backfill) return (await read(`${path}?limit=${RUNS}&order_by=-run_after`))?.dag_runs ?? [];
    const dates = new URLSearchParams({ logical_date_gte: backfill.from_date, logical_date_lte: backfill.to_date });
    for (let isWhole = false; !isWhole; ) {
      const found = await read(`${path}?${dates}&run_type=backfill&limit=100&offset=${runs.length}&order_by=logical_date`);
      runs.push(...(found?.dag_runs ?? []));
      isWhole = !found?.dag_runs?.length || runs.length >= found.total_entries;
    }
    return runs;
  }

  async function readHistory(dagId, backfill, tell) {
    const runs = (await readRuns(dagId, backfill)).sort((one, other) => timeOf(one).localeCompare(timeOf(other)));
    const history = [];
    for (let first = 0; first < runs.length; first += AT_ONCE) {
      tell(`Reading run ${first + 1} of ${runs.length} …`);
      history.push(...(await Promise.all(runs.slice(first, first + AT_ONCE).map((run) => readRun(dagId, run)))));
    }
    return history.filter(({ tasks }) => tasks > 0);
  }

  const sum = (reports, pick) => {
    const values = reports.map(pick).filter((value) => typeof value === "number" && Number.isFinite(value));
    return values.length ? values.reduce((total, value) => total + value, 0) : undefined;
  };

  const costOf = (reports) => sum(reports, (report) => report.cost_usd);

  // A task that sends the failed rows of another one reports the rows of both.
  const rowsOf = (reports, name) => {
    const whole = new Set(reports.filter((report) => report.all_rows).map((report) => report.dead_letter_uri));
    const counted = reports.filter((report) => report.all_rows || !whole.has(report.dead_letter_uri));
    return sum(counted, (report) => (report.all_rows ?? report.rows)[name]);
  };

  const number = (value) => value.toLocaleString("en-US", { maximumFractionDigits: 1 });

  const usd = (value) =>
    `$${value.toLocaleString("en-US", value >= 0.1 || !value ? { minimumFractionDigits: 2, maximumFractionDigits: 2 } : { maximumSignificantDigits: 2 })}`;

  const duration = (value) => {
    const seconds = Math.round(value);
    const [hours, minutes, rest] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, seconds % 60];
    const two = (part) => String(part).padStart(2, "0");
    return hours ? `${hours} h ${two(minutes)} min` : minutes ? `${minutes} min ${two(rest)} s` : `${rest} s`;
  };

  // Name, value of the reports of a run, and how it is written.
  const MEASURES = [
    ["Cost", costOf, usd],
    ["Rows answered", (reports) => rowsOf(reports, "answered"), number],
    ["Rows failed", (reports) => rowsOf(reports, "dead_letter"), number],
    ["Tokens", (reports) => sum(reports, (report) => (report.tokens?.input ?? 0) + (report.tokens?.output ?? 0)), number],
    ["Duration", (reports) => sum(reports, (report) => report.duration_seconds), duration],
  ];

  // The sum over runs, each with its reports.
  const shown = ([, measure, write], ...runs) => {
    const value = sum(runs, measure);
    const isUnknown = measure === costOf && runs.flat().some((report) => costOf([report]) === undefined);
    return value === undefined ? "–" : `${isUnknown ? "at least " : ""}${write(value)}`;
  };

  const modelOf = (report) => plain(report.model).replace(/^[^:]*:/, "");

  function Plot({ title, write, points }) {
    const most = Math.max(...points.map(({ value }) => value ?? 0));
    const step = (WIDTH - LEFT) / points.length;
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
        [[write(most), 12], ["0", y(0)]].map(([text, at], index) =>
          h("text", { key: index, x: LEFT - 6, y: at, textAnchor: "end", fontSize: 11, fill: "currentColor" }, text)),
        [points[0], points.at(-1)].map((point, index) =>
          h("text", { key: index, x: index ? WIDTH : LEFT, y: HEIGHT + 4, textAnchor: index ? "end" : "start", fontSize: 11, fill: "currentColor" },
            points.length > 1 || !index ? point.day : "")),
        bars));
  }

  function Plots({ history }) {
    const plots = MEASURES.map((measure) => {
      const points = history.map(({ run, reports }) => ({
        label: run.dag_run_id, day: day(timeOf(run)), state: run.state, value: measure[1](reports), text: shown(measure, reports),
        hasChanged: reports.some((report) => report.changes?.length),
      }));
      return { title: measure[0], write: measure[2], points };
    });
    return h("div", { style: { display: "grid", gridTemplateColumns: "repeat(auto-fit, minmax(min(100%, 20rem), 1fr))", gap: "1rem" } },
      plots.filter(({ points }) => points.some(({ value }) => value > 0)).map((plot) => h(Plot, { key: plot.title, ...plot })));
  }

  function Sum({ history }) {
    const all = history.map(({ reports }) => reports);
    const failures = history.filter(({ run }) => run.state === "failed").length;
    const [cost, answered, failed, tokens, time] = MEASURES.map((measure) => shown(measure, ...all));
    const left = history.flatMap(({ reports }) => reports).findLast((report) => typeof report.budget_left_usd === "number");
    const rest = left ? ` · ${usd(left.budget_left_usd)} of the shared budget were left` : "";
    const runs = `${number(history.length)} ${history.length === 1 ? "run" : "runs"}${failures ? `, ${number(failures)} of them failed` : ""}`;
    return h("p", { style: { fontWeight: 600 }, "data-testid": "llmbeam-sum" },
      `Sum of ${runs}: ${cost} · ${answered} rows answered · ${failed} failed · ${tokens} tokens · ${time}${rest}`);
  }

  function Runs({ dagId, history }) {
    const head = ["Run", "State", ...MEASURES.map(([title]) => title), "Model", "Changed, or failed because"];
    const style = { whiteSpace: "nowrap", padding: "0.25rem 0.75rem 0.25rem 0", textAlign: "left", verticalAlign: "top", borderBottom: "1px solid color-mix(in srgb, currentColor 20%, transparent)" };
    const wide = { ...style, whiteSpace: "normal", overflowWrap: "anywhere", minWidth: "16rem" };
    const link = (run) => new URL(`dags/${encodeURIComponent(dagId)}/runs/${encodeURIComponent(run.dag_run_id)}/plugin/inference-run`, document.baseURI).href;
    return h("div", { style: { overflowX: "auto" } },
      h("table", { style: { width: "100%", fontSize: "0.9rem", borderCollapse: "collapse" } },
        h("thead", null, h("tr", null, head.map((title) => h("th", { key: title, style }, title)))),
        h("tbody", null, [...history].reverse().map(({ run, reports, reasons }) =>
          h("tr", { key: run.dag_run_id },
            h("td", { style }, h("a", { href: link(run), style: { textDecoration: "underline" } }, run.dag_run_id)),
            h("td", { style }, run.state),
            MEASURES.map((measure) => h("td", { key: measure[0], style }, shown(measure, reports))),
            h("td", { style }, [...new Set(reports.map(modelOf))].join(", ")),
            h("td", { style: wide }, [...reasons, ...reports.flatMap((report) => report.changes ?? []).map(plain)].join("; ")))))));
  }

  function History({ dagId }) {
    const [state, setState] = useState({});
    const [backfills, setBackfills] = useState([]);
    const [backfill, choose] = useState();
    useEffect(() => {
      // Not everybody who sees a Dag may see its backfills.
      read(`api/v2/backfills?dag_id=${encodeURIComponent(dagId)}&order_by=-id&limit=20`).then(
        (found) => setBackfills(found?.backfills ?? []), () => setBackfills([]));
    }, [dagId]);
    useEffect(() => {
      let isOver = false;
      setState({});
      readHistory(dagId, backfill, (progress) => isOver || setState({ progress })).then(
        (history) => isOver || setState({ history }),
        (error) => isOver || setState({ error: String(error.message ?? error) }),
      );
      return () => { isOver = true; };
    }, [dagId, backfill]);
    const { history, error, progress } = state;
    const body = error
      ? h("p", { role: "alert" }, error)
      : history === undefined
        ? h("p", { style: MUTED }, progress ?? "Loading …")
        : history.length === 0
          ? h("p", { style: MUTED }, backfill ? "No run of this backfill has run inference." : "No run of this Dag has run inference.")
          : h("div", null,
              history.some(({ reports }) => reports.length) ? h(Sum, { history }) : null,
              h("p", { style: MUTED }, "Orange: answers, model or prompt differ from the runs before. Red: the run failed."),
              h(Plots, { history }),
              h(Runs, { dagId, history }));
    const period = ({ from_date: from, to_date: to }) => `Backfill ${day(from)} to ${day(to)}`;
    const choice = backfills.length
      ? h("select", {
          "aria-label": "Runs", value: String(backfill?.id ?? ""), style: { border: "1px solid", borderRadius: "0.25rem", padding: "0.25rem 0.5rem", marginBottom: "0.75rem", background: "inherit" },
          onChange: (event) => choose(backfills.find(({ id }) => String(id) === event.target.value)),
        },
        h("option", { value: "" }, `Last ${RUNS} runs`),
        backfills.map((each) => h("option", { key: each.id, value: String(each.id) }, period(each))))
      : null;
    return h("div", { style: { padding: "1rem", overflowY: "auto", height: "100%" }, "data-testid": "llmbeam-history" }, choice, body);
  }

  globalThis["Inference history"] = globalThis.AirflowPlugin = History;
})();
