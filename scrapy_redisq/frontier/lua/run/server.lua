-- The state of a shard's server: its time, by which everything is due on the shard, how full both
-- are, and whether the server can keep a filter of RedisBloom.
--
-- Input    probe (1: whether it can)
-- Reply    {us since 1970, requests of the shard that are not finished, bytes of memory that the
--          server uses, its maxmemory (0: it has none; both 0: it does not say), 1 if there is
--          RedisBloom, else 0}
-- Cost     O(1); writes nothing that stays

local function told_of(info, name)
  return type(info) == 'string' and tonumber(string.match(info, name .. ':(%d+)')) or 0
end

-- A key that is there for no longer than this step. Modules with these commands have other names
-- from server to server, and an ACL may forbid some of them.
local PROBE = KEYS[2]

-- -> the error of the first command that fails
local function problem_of_bloom()
  for _, command in ipairs({{'BF.RESERVE', PROBE, '0.01', '100', 'EXPANSION', '1'},
      {'BF.MADD', PROBE, 'probe'}, {'BF.MEXISTS', PROBE, 'probe'}}) do
    local said = redis.pcall(unpack(command))
    if type(said) == 'table' and said.err then return said.err end
  end
end

local has_bloom = 0
if input.probe then
  redis.call('UNLINK', PROBE) -- a first write that removes: works at maxmemory too
  local problem = problem_of_bloom()
  redis.call('UNLINK', PROBE)
  local is_absent = false
  for _, sign in ipairs({'unknown', 'noperm', "can't run", 'permission', 'acl'}) do
    is_absent = is_absent or problem and string.find(string.lower(problem), sign, 1, true)
  end
  if problem and not is_absent then
    return redis.error_reply(problem) -- READONLY, say, which tells nothing of the module
  end
  has_bloom = problem and 0 or 1
end
local counts = fields_of(COUNTS, 'created', 'finished')
local info = redis.pcall('INFO', 'memory') -- the user may not ask for it
return {integer(NOW), math.max(0, number_of(counts.created) - number_of(counts.finished)),
  told_of(info, 'used_memory'), told_of(info, 'maxmemory'), has_bloom}
