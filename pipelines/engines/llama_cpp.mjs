// llama.cpp through node-llama-cpp: answers blocks of prompts, JSON lines, as pipelines/peers.py has it.
//
//     node llama_cpp.mjs '{"package": FOLDER, "gguf": FILE, "threads": 2, "lookup": false}'
//
// Prompts are token ids, those of the file's own vocabulary. A pass's tokens are the accepted ones of its lookup and one more.
import {readFileSync} from "node:fs";
import {createInterface} from "node:readline";

const options = JSON.parse(process.argv[2]);
const {getLlama, InputLookupTokenPredictor, LlamaLogLevel, GgufFileType} = await import(`${options.package}/dist/index.js`);
const llama = await getLlama({
    build: "never", gpu: false, maxThreads: options.threads,
    logLevel: LlamaLogLevel.error, logger: (level, message) => console.error(message)
});
const model = await llama.loadModel({modelPath: options.gguf});
const context = await model.createContext({contextSize: 2048, sequences: 1, threads: options.threads});
const tokenPredictor = options.lookup ? new InputLookupTokenPredictor() : undefined;
const sequence = context.getSequence({tokenPredictor});

async function decode(prompt, newTokens) {
    await sequence.clearHistory();
    tokenPredictor?.updateInputTokens(prompt);
    const tokens = [], emitted = [];
    let used = sequence.tokenPredictions.used, first = 0;
    const start = performance.now();
    for await (const token of sequence.evaluate(prompt, {temperature: 0, yieldEogToken: true})) {
        first ||= performance.now() - start;
        tokens.push(token);
        const ahead = sequence.tokenPredictions.used;
        if (ahead > used) emitted[emitted.length - 1]++;  // verified by the pass before
        else emitted.push(1);
        used = ahead;
        if (tokens.length === newTokens) break;
    }
    return {tokens, emitted, first: first / 1000, seconds: (performance.now() - start) / 1000};
}

const {version} = JSON.parse(readFileSync(`${options.package}/package.json`, "utf8"));
const versions = {"node-llama-cpp": version, node: process.version};
const format = GgufFileType[model.fileInfo.metadata.general.file_type];
console.log(JSON.stringify({versions, format}));
for await (const line of createInterface({input: process.stdin})) {
    const asked = JSON.parse(line), decodes = [];
    for (const [place, prompt] of asked.prompts.entries()) decodes.push(await decode(prompt, asked.new_tokens[place]));
    console.log(JSON.stringify({decodes}));
}
process.exit(0);
