// Hosts of E2B_DOMAIN lead to a port of this machine, as a name server and a balancer would have it: node --require.
const tls = require("node:tls");

const { connect } = tls;
tls.connect = (options, ...rest) => {
  const isOurs = options.host?.endsWith(`.${process.env.E2B_DOMAIN}`);
  return connect(isOurs ? { ...options, host: "127.0.0.1", port: Number(process.env.SERVER_PORT) } : options, ...rest);
};
