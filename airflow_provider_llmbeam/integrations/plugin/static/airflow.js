// What the pages share: requests to Airflow's REST API, and text that is safe to read.
const RUNNING = new Set(["RunInferenceOperator", "RetryFailedRowsOperator", "@task.llmbeam", "_LLMBeamDecoratedOperator"]);
const MEASURING = new Set(["EstimateInferenceOperator", "EvaluateInferenceOperator", "CompareInferenceOperator", "StreamInferenceOperator"]);
const isOne = (operators) => (task) => [task.operator_name, task.operator].some((name) => operators.has(name));
// Whether a task runs inference over the rows of a Dag, and whether it estimates, evaluates or compares such a one,
// or answers the messages of a queue.
export const isRunning = isOne(RUNNING);
export const isMeasuring = isOne(MEASURING);
export const isTeardown = isOne(new Set(["TeardownEndpointOperator"]));
export const MUTED = { opacity: 0.7 };

// Without control characters and those that turn the direction of text, which a model may have written. Whoever may
// write XComs may have stored any JSON: an object may have no text of its own (`{"toString": 1}`).
export const plain = (value) =>
  (typeof (value ?? "") === "object" ? JSON.stringify(value) : String(value ?? "")).replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");

export async function read(path) {
  const response = await fetch(new URL(path, document.baseURI), { headers: { Accept: "application/json" } });
  if (response.status === 404) return undefined;
  if (!response.ok) throw new Error(`Airflow answered ${response.status} for ${path}.`);
  return response.json();
}

export const pathOfTasks = (dagId, runId) =>
  `api/v2/dags/${encodeURIComponent(dagId)}/dagRuns/${encodeURIComponent(runId)}/taskInstances`;

export const pathOfTask = (task) =>
  `${pathOfTasks(task.dag_id, task.dag_run_id)}/${encodeURIComponent(task.task_id)}`;

// The tasks of a run. Airflow returns at most 100 at once (`api.maximum_page_limit`), or fewer.
export async function readTasks(dagId, runId) {
  const tasks = [];
  for (let isWhole = false; !isWhole; ) {
    const found = await read(`${pathOfTasks(dagId, runId)}?limit=100&offset=${tasks.length}`);
    tasks.push(...(found?.task_instances ?? []));
    isWhole = !found?.task_instances?.length || tasks.length >= found.total_entries;
  }
  return tasks;
}

export async function readXCom(task, key) {
  const found = await read(`${pathOfTask(task)}/xcomEntries/${key}?map_index=${task.map_index}&deserialize=true`);
  return found?.value;
}

// From the log of the last try: the last line with the progress, which the worker or the triggerer has written, and
// the error that ended it.
export async function readLog(task) {
  if (!task.try_number) return {};
  const log = await read(`${pathOfTask(task)}/logs/${task.try_number}?map_index=${task.map_index}&full_content=true`);
  const lines = Array.isArray(log?.content) ? log.content : [];
  const texts = lines.map((line) => String(line.event ?? line));
  return {
    progress: texts.findLast((line) => /^rows [\d,]+\/[\d,]+|^Batch inference: [\d,]+ of [\d,]+ rows/.test(line)),
    error: lines.findLast((line) => line.error_detail?.length)?.error_detail[0].exc_value,
  };
}
