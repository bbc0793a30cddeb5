// BullMQ: flows are trees, so each task has one parent: 19 of the 40 edges of dag20. A chain is a tree, too.
import { createInterface } from 'node:readline';
import { openSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';

const { FlowProducer, Queue, Worker } = createRequire(process.env.PEER_MODULES + '/')('bullmq');
const connection = { host: '127.0.0.1', port: Number(process.env.PEER_PORT) };
const shapes = JSON.parse(process.env.PEER_SHAPES);
const now = () => process.hrtime.bigint();

// The tree below a task: what it needs, without what another branch has taken already.
function tree(shape, run, task, taken) {
  const children = [];
  for (const need of shape[task]) {
    if (!taken.has(need)) {
      taken.add(need);
      children.push(tree(shape, run, need, taken));
    }
  }
  return { name: task, queueName: 'bench', data: { run, task }, children };
}

function flow(workload, run) {
  const shape = shapes[workload];
  const names = Object.keys(shape);
  return tree(shape, run, names[names.length - 1], new Set());
}

async function submit() {
  const flows = new FlowProducer({ connection });
  const queue = new Queue('bench', { connection });
  await queue.waitUntilReady();
  console.log('ready');
  for await (const line of createInterface({ input: process.stdin })) {
    const [workload, prefix, count] = line.split(' ');
    const runs = Array.from({ length: Number(count) }, (_, i) => `${prefix}.${i}`);
    const begun = now();
    for (let i = 0; i < runs.length; i += 200) {
      const some = runs.slice(i, i + 200);
      if (workload === 'flat') await queue.addBulk(some.map((run) => ({ name: 't0', data: { run, task: 't0' } })));
      else await flows.addBulk(some.map((run) => flow(workload, run)));
    }
    console.log(`{"begun": ${begun}, "ended": ${now()}}`);
  }
  process.exit(0);
}

function work() {
  const trace = openSync(process.env.PEER_TRACE, 'a');
  const worker = new Worker(
    'bench',
    async (job) => {
      writeSync(trace, `${job.data.run}\t${job.data.task}\t${now()}\n`);
    },
    { connection, concurrency: 64 },
  );
  const stop = () => process.exit(0);
  process.on('SIGTERM', stop);
  worker.on('error', (error) => console.error(error));
}

if (process.argv[2] === 'submit') submit();
else work();
