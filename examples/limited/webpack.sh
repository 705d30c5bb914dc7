#!/usr/bin/env bash
# webpack with a heap limit: the 10,000 icons of Material UI with source maps, in 512 MiB. Needs
# node and npm; installs webpack, Material UI and React from npm into DIRECTORY/web. A smaller heap,
# HEAP=384, ends with "JavaScript heap out of memory" before the limit is reached.
. "$(dirname "$0")/compare.sh"
need node npm
mkdir -p "$work/web"
cd "$work/web"
[ -e node_modules/webpack ] || npm install --silent --no-fund webpack@5 webpack-cli@6 react@19 react-dom@19 \
    @mui/icons-material@9 @mui/material@9 @emotion/react @emotion/styled > /dev/null
cat > entry.js << 'end'
import * as icons from '@mui/icons-material';
import { createElement } from 'react';
import { createRoot } from 'react-dom/client';
createRoot(document.body).render(Object.values(icons).map((Icon, n) => createElement(Icon, { key: n })));
end
before() { rm -rf out; }
compare webpack 512M sh -c 'node --max-old-space-size='"${HEAP:-2048}"' --max-semi-space-size=2 node_modules/webpack/bin/webpack.js \
    --mode development --devtool source-map --entry ./entry.js -o out > log && sha256sum out/*'
