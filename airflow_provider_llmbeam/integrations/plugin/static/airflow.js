// What the pages share: requests to Airflow's REST API, and text that is safe to read.
const OPERATORS = new Set(["RunInferenceOperator", "RetryFailedRowsOperator", "@task.llmbeam", "_LLMBeamDecoratedOperator"]);
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

// The tasks of a run that run inference. Airflow returns at most 100 at once (`api.maximum_page_limit`), or fewer.
export async function readTasks(dagId, runId) {
  const tasks = [];
  for (let isWhole = false; !isWhole; ) {
    const found = await read(`${pathOfTasks(dagId, runId)}?limit=100&offset=${tasks.length}`);
    tasks.push(...(found?.task_instances ?? []));
    isWhole = !found?.task_instances?.length || tasks.length >= found.total_entries;
  }
  return tasks.filter((task) => [task.operator_name, task.operator].some((name) => OPERATORS.has(name)));
}

export async function readXCom(task, key) {
  const found = await read(`${pathOfTask(task)}/xcomEntries/${key}?map_index=${task.map_index}&deserialize=true`);
  return found?.value;
}
