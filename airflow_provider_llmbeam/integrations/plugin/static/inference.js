// The pages "Inference" of a task instance and "Inference of the run": what a task has reported, also one that
// estimates, evaluates or compares; without a report, the
// progress line of its log, and its error. What a model, a row or a server said is shown as text, or in a frame that runs no scripts.
import { isMeasuring, isRunning, isTeardown, MUTED, plain, readLog, readTasks, readXCom } from "./airflow.js";

(() => {
  const { createElement: h, useEffect, useState } = globalThis.React;
  const POLL_MS = 10_000;
  const OPEN_TASKS = 3;
  const ENDED = new Set(["success", "failed", "skipped", "upstream_failed", "removed"]);

  // Of an operator, the XCom has 48 kB at most, and the page some 40 kB. Others may have stored any JSON there, any
  // HTML, and some kB of gzip that become GB.
  const [MAX_GZIP, MAX_BYTES] = [48 * 1024, 8 * 2 ** 20];
  // The policy of the report's own page, for each page that is shown: nothing is loaded from anywhere.
  const POLICY = "default-src 'none'; style-src 'unsafe-inline'";

  async function readPage(task) {
    const page = await readXCom(task, "llmbeam_page");
    if (page === undefined || page === null) return undefined;
    const { uri, html_gzip: gzip } = page;
    const isWhole = typeof gzip === "string" && gzip.length <= MAX_GZIP;
    return { uri, html: isWhole ? await unzip(gzip).catch(() => undefined) : undefined };
  }

  async function readGpu(task) {
    const [hours, usd] = await Promise.all(["gpu_hours", "gpu_usd"].map((key) => readXCom(task, key)));
    if (typeof hours !== "number") return undefined;
    const cost = typeof usd === "number" ? `$${usd.toFixed(2)}` : "its price is not known";
    return `The endpoint was removed ${hours.toFixed(2)} hours after its start: ${cost}.`;
  }

  async function readReports({ dagId, runId, taskId, mapIndex }) {
    const wanted = (await readTasks(dagId, runId)).filter(
      (task) => (isRunning(task) || isMeasuring(task) || isTeardown(task)) && (taskId === undefined || task.task_id === taskId && task.map_index === Number(mapIndex ?? -1)),
    );
    return Promise.all(
      wanted.map(async (task) => {
        if (isTeardown(task)) return { task, gpu: await readGpu(task) };
        const page = await readPage(task);
        return { task, page, ...(page || task.state === "success" ? {} : await readLog(task)) };
      }),
    );
  }

  function Progress({ line, isOver }) {
    const [, done, all] = line.match(/([\d,]+)(?:\/| of )([\d,]+)/) ?? [];
    const number = (text) => Number((text ?? "0").replaceAll(",", ""));
    return h(
      "div",
      { style: { margin: "1rem 0" } },
      h("progress", { max: number(all) || 1, value: number(done), style: { width: "100%" }, "aria-label": "Rows" }),
      h("div", null, plain(isOver ? line.replace(/ · ETA .*/, "") : line)),
    );
  }

  // The report is a page without scripts, and the frame runs none and has no origin: nothing in it can reach Airflow.
  function Report({ html, isDark }) {
    return h("iframe", {
      // In the theme of Airflow, and not in that of the system.
      title: "Report", sandbox: "", csp: POLICY, // `csp` also holds for a page that a link leads to, in Chromium
      srcDoc: `<!doctype html><meta http-equiv="Content-Security-Policy" content="${POLICY}">`
        + html.replaceAll("(prefers-color-scheme: dark)", isDark ? "all" : "not all"),
      style: { width: "100%", height: "calc(100vh - 12rem)", minHeight: "30rem", border: 0 },
    });
  }

  async function unzip(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const reader = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
    const pieces = [];
    for (let size = 0, piece; !(piece = await reader.read()).done; pieces.push(piece.value)) {
      if ((size += piece.value.length) > MAX_BYTES) return void reader.cancel();
    }
    return new Blob(pieces).text();
  }

  function Task({ found, isDark }) {
    const { task, page, progress, error, gpu } = found;
    const isOver = ENDED.has(task.state);
    if (isTeardown(task)) return h("p", null, gpu ?? (isOver ? "No endpoint was removed." : "The endpoint is removed after the work."));
    if (page?.html) return h(Report, { html: page.html, isDark });
    if (page) return h("p", null, `The report is too large for this page, or is none. It is in ${plain(page.uri)}.`);
    if (progress || error) {
      return h("div", null,
        error ? h("p", { role: "alert", style: { whiteSpace: "pre-wrap" } }, plain(error)) : null,
        progress ? h(Progress, { line: progress, isOver }) : null);
    }
    return h("p", { style: MUTED },
      isOver ? "This task has no report: it ended before its job did. Its log says why." : "The job has not reported progress yet.");
  }

  function TaskOfRun({ found, isOpen, isDark }) {
    const { task } = found;
    const [isShown, show] = useState(isOpen);
    const name = `${task.task_id}${task.map_index >= 0 ? ` [${task.map_index}]` : ""}`;
    return h("details", { open: isShown, onToggle: (event) => show(event.currentTarget.open), style: { margin: "0 0 1.5rem" } },
      h("summary", { style: { fontWeight: 600, cursor: "pointer" } }, `${name}: ${task.state ?? "not started"}`),
      isShown ? h(Task, { found, isDark }) : null);
  }

  function Inference(props) {
    const [state, setState] = useState({});
    const { dagId, runId, taskId, mapIndex } = props;
    useEffect(() => {
      let timer, isOver = false;
      const poll = async () => {
        try {
          const tasks = await readReports({ dagId, runId, taskId, mapIndex });
          if (isOver) return;
          setState({ tasks });
          if (tasks.some(({ task }) => !ENDED.has(task.state))) timer = setTimeout(poll, POLL_MS);
        } catch (error) {
          if (isOver) return;
          setState((before) => ({ ...before, error: String(error.message ?? error) }));
          timer = setTimeout(poll, POLL_MS);
        }
      };
      poll();
      return () => {
        isOver = true;
        clearTimeout(timer);
      };
    }, [dagId, runId, taskId, mapIndex]);
    const { tasks, error } = state;
    const isDark = document.documentElement.classList.contains("dark");
    const isRun = taskId === undefined;
    const running = (tasks ?? []).filter(({ task }) => isRunning(task));
    const opened = (running.length ? running : tasks ?? []).slice(0, OPEN_TASKS);
    const key = ({ task }) => `${task.task_id} ${task.map_index}`;
    return h("div", { style: { padding: "1rem", overflowY: "auto", height: "100%" }, "data-testid": "llmbeam-inference" },
      error ? h("p", { role: "alert" }, `${error} The page tries again.`) : null,
      tasks === undefined && !error ? h("p", { style: MUTED }, "Loading …") : null,
      tasks?.length === 0 ? h("p", { style: MUTED }, isRun ? "No task of this run runs inference." : "This task runs no inference.") : null,
      tasks?.map((found) => isRun
        ? h(TaskOfRun, { key: key(found), found, isOpen: opened.includes(found), isDark })
        : h(Task, { key: key(found), found, isDark })));
  }

  globalThis["Inference"] = globalThis["Inference of the run"] = globalThis.AirflowPlugin = Inference;
})();
