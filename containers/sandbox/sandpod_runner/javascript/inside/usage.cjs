// What this process has used so far.
'use strict';

const fs = require('node:fs');

const TICK = 0.01; // seconds: the kernel counts children's time so

// Seconds of processor time, those of children that have ended included, and the peak of memory in bytes.
function usage() {
  const { user, system } = process.cpuUsage();
  const fields = fs.readFileSync('/proc/self/stat', 'latin1').split(') ').at(-1).split(' ');
  const children = (Number(fields[13]) + Number(fields[14])) * TICK;
  return { cpu: (user + system) / 1e6 + children, size: process.resourceUsage().maxRSS * 1024 };
}

module.exports = { usage };
